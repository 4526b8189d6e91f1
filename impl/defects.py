"""Seeded defects: small subclasses of the port, each wrong in one way.

A property that cannot fail proves nothing. Each defect names the property that must be the first to catch it,
and where it shows; the tests hold both against it. Several at once are their common subclass
(`port:early-evictable+unfiltered-freed`).
"""

from msgspec import Struct

from impl.port import PortManager
from model.manager import ManagedRequest
from model.operations import Discipline


class Defect(Struct, frozen=True):
    """A named way of being wrong.

    Attributes:
        name: As in `port:<name>`.
        sentence: What the manager does wrong.
        manager_class: The port with the defect.
        property: The property that is the first to break.
        scope: A small scope in which it shows.
        disciplines: Those under which it shows there; under another it shows nowhere.
    """

    name: str
    sentence: str
    manager_class: type[PortManager]
    property: str
    scope: str = "2r1i2h/sizes=1/capacity=1"
    disciplines: tuple[Discipline, ...] = (Discipline.CALLER, Discipline.OPEN)


class EarlyEvictable(PortManager):
    def _needs_still(self, request: ManagedRequest, mm_hash: str) -> bool:
        return False


class UnfilteredFreed(PortManager):
    def _is_reported(self, mm_hash: str) -> bool:
        return True


class NewestFirstEviction(PortManager):
    def _next_victim(self) -> tuple[str, int]:
        return self.freeable.popitem(last=True)


class OneEvictionTooMany(PortManager):
    def _make_room(self, needed: int) -> None:
        if needed > self.num_free_slots:
            super()._make_room(needed)
            if self.freeable:
                self._evict()


class OneEvictionTooFew(PortManager):
    def _make_room(self, needed: int) -> None:
        super()._make_room(needed - 1)


class HitStaysEvictable(PortManager):
    def _leave_queue(self, mm_hash: str) -> None:
        pass


class HitWithoutReference(PortManager):
    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        mm_hash = request.mm_features[input_id].identifier
        holders = set(self.cached.get(mm_hash, ()))
        hit = super().check_and_update_cache(request, input_id)
        if hit:
            self.cached[mm_hash] = holders
        return hit


class HitNotListed(PortManager):
    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        listed = self.get_cached_input_ids(request)
        hit = super().check_and_update_cache(request, input_id)
        if hit:
            self.request_cached_ids[request.request_id] = listed
        return hit


class SlotsNotReturned(PortManager):
    def _make_room(self, needed: int) -> None:
        free = self.num_free_slots
        super()._make_room(needed)
        self.num_free_slots = free


class SlotsCountedTwice(PortManager):
    def _leave_queue(self, mm_hash: str) -> None:
        self.num_freeable_slots -= self.freeable[mm_hash]
        super()._leave_queue(mm_hash)


class DrainDoesNotClear(PortManager):
    def get_freed_mm_hashes(self) -> list[str]:
        pending = list(self.freed)
        report = super().get_freed_mm_hashes()
        self.freed = pending
        return report


class DrainLosesTwiceEvicted(PortManager):
    def get_freed_mm_hashes(self) -> list[str]:
        self.freed = [mm_hash for mm_hash in self.freed if self.freed.count(mm_hash) == 1]
        return super().get_freed_mm_hashes()


class ResetKeepsPending(PortManager):
    def reset(self) -> None:
        pending = list(self.freed)
        super().reset()
        self.freed = pending


class ResetKeepsReferences(PortManager):
    def _forget_references(self) -> None:
        pass


class FreedRequestStaysListed(PortManager):
    def _unlist(self, request: ManagedRequest) -> None:
        pass


class SizeOfFreeingRequest(PortManager):
    def _size_on_free(self, request: ManagedRequest, input_id: int, mm_hash: str) -> int:
        return request.get_num_encoder_embeds(input_id)


class BudgetRefusalEvicts(PortManager):
    def can_allocate(
        self,
        request: ManagedRequest,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        embeds = request.get_num_encoder_embeds(input_id)
        room = super().can_allocate(request, input_id, embeds, num_embeds_to_schedule)
        return room and embeds <= encoder_compute_budget


class EmptyQueueRaises(PortManager):
    def can_allocate(
        self,
        request: ManagedRequest,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        embeds = request.get_num_encoder_embeds(input_id)
        if embeds > encoder_compute_budget:
            return False
        self._make_room(embeds + num_embeds_to_schedule)
        return True


class Overcommits(PortManager):
    def _make_room(self, needed: int) -> None:
        pass


class RefusesExactlyFull(PortManager):
    def can_allocate(
        self,
        request: ManagedRequest,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        needed = request.get_num_encoder_embeds(input_id) + num_embeds_to_schedule
        if needed == self.num_freeable_slots:
            return False
        return super().can_allocate(request, input_id, encoder_compute_budget, num_embeds_to_schedule)


DEFECTS: tuple[Defect, ...] = (
    Defect(
        "early-evictable",
        "a request's first free of a hash gives up all its occurrences of it (vLLM up to 0.28.0)",
        EarlyEvictable,
        "evictable-unreferenced",
        "1r2i1h/sizes=1/capacity=1",
    ),
    Defect(
        "unfiltered-freed",
        "the freed report names hashes that are cached again (vLLM up to 0.27.1)",
        UnfilteredFreed,
        "freed-disjoint-cached",
    ),
    Defect(
        "newest-first-eviction",
        "the entry that became evictable last is evicted first",
        NewestFirstEviction,
        "eviction-order",
        "3r1i3h/sizes=1/capacity=2",
    ),
    Defect(
        "one-eviction-too-many",
        "after making room, one more entry is evicted",
        OneEvictionTooMany,
        "eviction-order",
        "3r1i3h/sizes=1/capacity=2",
    ),
    Defect(
        "one-eviction-too-few",
        "evicting stops one embed early, at exactly full",
        OneEvictionTooFew,
        "capacity-respected",
    ),
    Defect(
        "hit-stays-evictable",
        "a hit on an evictable entry leaves it in the queue",
        HitStaysEvictable,
        "evictable-unreferenced",
    ),
    Defect(
        "hit-without-reference",
        "a hit does not record that the request refers to the entry",
        HitWithoutReference,
        "evictable-unreferenced",
    ),
    Defect(
        "hit-not-listed",
        "a hit does not record the input among those that the request holds",
        HitNotListed,
        "cached-ids-exact",
    ),
    Defect(
        "slots-not-returned",
        "evicting an entry does not return its embeds to the free slots",
        SlotsNotReturned,
        "slots-conserved",
    ),
    Defect(
        "slots-counted-twice",
        "a hit on an evictable entry takes its embeds off the freeable slots twice",
        SlotsCountedTwice,
        "slots-conserved",
    ),
    Defect(
        "drain-does-not-clear",
        "a report is repeated by the next drain",
        DrainDoesNotClear,
        "report-cleared",
    ),
    Defect(
        "drain-loses-twice-evicted",
        "a hash that was evicted twice since the last drain is not reported",
        DrainLosesTwiceEvicted,
        "report-complete",
        "3r1i3h/sizes=1/capacity=1",
    ),
    Defect(
        "reset-keeps-pending",
        "a reset does not withdraw the pending report",
        ResetKeepsPending,
        "reset-initial",
        disciplines=(Discipline.OPEN,),  # a scheduler resets between passes, and a pass ends with a drain
    ),
    Defect(
        "reset-keeps-references",
        "a reset does not forget which inputs the requests held",
        ResetKeepsReferences,
        "reset-initial",
    ),
    Defect(
        "freed-request-stays-listed",
        "a request that holds nothing keeps its place in the map of held inputs",
        FreedRequestStaysListed,
        "nothing-stale",
    ),
    Defect(
        "size-of-freeing-request",
        "an entry becomes evictable with the size that the freeing request states (vLLM up to 0.30.0)",
        SizeOfFreeingRequest,
        "slots-conserved",
        "2r1i1h/capacity=2/mixed",
    ),
    Defect(
        "budget-refusal-evicts",
        "room is made before the compute budget refuses",
        BudgetRefusalEvicts,
        "eviction-order",
        "2r1i2h/capacity=2/budget=1",
    ),
    Defect(
        "empty-queue-raises",
        "evicting goes on when nothing is left to evict",
        EmptyQueueRaises,
        "no-crash",
    ),
    Defect(
        "overcommits",
        "freeable slots count as room without evicting anything",
        Overcommits,
        "capacity-respected",
    ),
    Defect(
        "refuses-exactly-full",
        "an item that fits exactly is refused",
        RefusesExactlyFull,
        "results-agree",
    ),
)
"""The catalogue."""
