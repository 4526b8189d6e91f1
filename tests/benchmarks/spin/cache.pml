/* The open discipline's calls on an encoder cache, for SPIN: the same relation as model/reference.py explores.
 *
 * Items have one embed each. The first steps choose a hash for every input, so one run covers every mapping of
 * inputs to hashes; what follows are the calls of model/contract.py, each one transition, legal in the same
 * states. Occurrences are numbered request by request. Bounds come from the command line:
 * -DREQUESTS=3 -DINPUTS=2 -DHASHES=3 -DCAPACITY=2; at most nine occurrences and four hashes.
 */

#define OCCURRENCES (REQUESTS * INPUTS)

/* The hash of an occurrence, spread over two sets of occurrences: those with its lower bit, and its upper one. */
short low, high;
#define HASH(o) (((low >> (o)) & 1) + 2 * ((high >> (o)) & 1))
#define OF(h) ((((h) & 1) -> low : ~low) & (((h) & 2) -> high : ~high))

byte cached;            /* set of hashes */
short held;             /* set of occurrences */
byte queue[CAPACITY];   /* evictable hashes plus one, oldest first; 0 where there is none */
byte queued;            /* how many */
byte evicted;           /* set of hashes evicted since the last drain */
bit again;              /* whether one of them was evicted more than once */

#define CACHED(h) ((cached >> (h)) & 1)
#define ABSENT(o) (!CACHED(HASH(o)))
#define NEEDED(h) (held & OF(h))
#define USED ((cached & 1) + ((cached >> 1) & 1) + ((cached >> 2) & 1) + ((cached >> 3) & 1))
#define FREE (CAPACITY - USED)
#define FREEABLE (FREE + queued)

/* Set anew before they are read, so that they are no part of a state. */
hidden byte h, place, number;

inline take_out(from) {
  place = from;
  do
  :: place + 1 < queued -> queue[place] = queue[place + 1]; place++
  :: else -> break
  od;
  queued--;
  queue[queued] = 0
}

inline evict_oldest() {
  h = queue[0] - 1;
  take_out(0);
  cached = cached & ~(1 << h);
  again = again | ((evicted >> h) & 1);
  evicted = evicted | (1 << h)
}

inline check(o) {
  h = HASH(o);
  if
  :: CACHED(h) ->
    if
    :: !NEEDED(h) ->
      number = 0;
      do
      :: queue[number] != h + 1 -> number++
      :: else -> break
      od;
      take_out(number)
    :: else
    fi;
    held = held | (1 << o)
  :: else
  fi
}

inline can_allocate(o, budget, promised) {
  ABSENT(o);
  if
  :: 1 > budget || 1 + promised > FREEABLE
  :: else ->
    do
    :: 1 + promised > FREE -> evict_oldest()
    :: else -> break
    od
  fi
}

inline allocate(o) {
  ABSENT(o) && FREE >= 1;
  cached = cached | (1 << HASH(o));
  held = held | (1 << o)
}

inline free_input(o) {
  if
  :: (held >> o) & 1 ->
    h = HASH(o);
    held = held & ~(1 << o);
    if
    :: !NEEDED(h) -> queue[queued] = h + 1; queued++
    :: else
    fi
  :: else
  fi
}

inline free_request(r) {
  number = 0;
  do
  :: number < INPUTS -> free_input(r * INPUTS + number); number++
  :: else -> break
  od
}

inline drain() {
  assert((evicted & ~cached & cached) == 0);
  evicted = 0;
  again = 0
}

inline reset() {
  cached = 0;
  held = 0;
  evicted = 0;
  again = 0;
  do
  :: queued > 0 -> queued--; queue[queued] = 0
  :: else -> break
  od
}

/* Every evictable entry is cached and needed by nobody, and what is cached fits. */
inline invariants() {
  number = 0;
  do
  :: number < queued -> assert(CACHED(queue[number] - 1) && !NEEDED(queue[number] - 1)); number++
  :: else -> break
  od;
  assert(USED <= CAPACITY)
}

#define CALLS_OF_OCCURRENCE(o) \
  :: d_step { check(o); invariants() } \
  :: d_step { can_allocate(o, 1, 0); invariants() } \
  :: d_step { can_allocate(o, 1, 1); invariants() } \
  :: d_step { can_allocate(o, 0, 0); invariants() } \
  :: d_step { can_allocate(o, 0, 1); invariants() } \
  :: d_step { allocate(o); invariants() } \
  :: d_step { free_input(o); invariants() }

#define CALL_OF_REQUEST(r) \
  :: d_step { free_request(r); invariants() }

#define GIVE(number) \
  :: d_step { \
       HASHES > number && chosen < OCCURRENCES; \
       low = low | ((number & 1) << chosen); \
       high = high | ((number >> 1) << chosen); \
       chosen++ \
     }

active proctype caller() {
  byte chosen;
  do
  GIVE(0)
  GIVE(1)
  GIVE(2)
  GIVE(3)
  :: chosen == OCCURRENCES -> break
  od;
  do
  CALLS_OF_OCCURRENCE(0)
#if OCCURRENCES > 1
  CALLS_OF_OCCURRENCE(1)
#endif
#if OCCURRENCES > 2
  CALLS_OF_OCCURRENCE(2)
#endif
#if OCCURRENCES > 3
  CALLS_OF_OCCURRENCE(3)
#endif
#if OCCURRENCES > 4
  CALLS_OF_OCCURRENCE(4)
#endif
#if OCCURRENCES > 5
  CALLS_OF_OCCURRENCE(5)
#endif
#if OCCURRENCES > 6
  CALLS_OF_OCCURRENCE(6)
#endif
#if OCCURRENCES > 7
  CALLS_OF_OCCURRENCE(7)
#endif
#if OCCURRENCES > 8
  CALLS_OF_OCCURRENCE(8)
#endif
  CALL_OF_REQUEST(0)
#if REQUESTS > 1
  CALL_OF_REQUEST(1)
#endif
#if REQUESTS > 2
  CALL_OF_REQUEST(2)
#endif
  :: d_step { drain(); invariants() }
  :: d_step { reset(); invariants() }
  od
}
