// evictcheck's own encoder-cache manager in C++: correct, and small enough to compare a port with.
//
// A caller passes ids, the item's hash and its size in embeds to each call. What a request still needs is known
// from what was handed over when it was acquired, so that callers need no predicate of their own.
//
// Two switches seed the two faults that this project started from:
//   EVICTCHECK_EARLY_EVICTABLE   the first free of a hash gives up all of a request's occurrences of it
//   EVICTCHECK_UNFILTERED_FREED  the freed report names hashes that are cached again
#ifndef EVICTCHECK_ENCODER_CACHE_MANAGER_H_
#define EVICTCHECK_ENCODER_CACHE_MANAGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace vllm::v1::core {

class EncoderCacheManager {
 public:
  // Capacity in embeds.
  explicit EncoderCacheManager(std::int64_t capacity);

  // Whether the hash is cached; a hit holds it for this occurrence.
  bool CheckAndUpdateCache(const std::string& request_id, int input_id, const std::string& mm_hash);

  // Whether there is room, after evicting the oldest evictable entries as far as needed. Nothing is reserved.
  bool CanAllocate(std::int64_t num_embeds, std::int64_t encoder_compute_budget,
                   std::int64_t num_embeds_to_schedule);

  // Makes the entry, held by this occurrence. CanAllocate has answered true for it in this pass.
  void Allocate(const std::string& request_id, int input_id, const std::string& mm_hash,
                std::int64_t num_embeds);

  // The occurrences that the request holds.
  std::set<int> GetCachedInputIds(const std::string& request_id) const;

  // This occurrence is no longer needed; nothing happens if it is not held.
  void FreeEncoderInput(const std::string& request_id, int input_id, const std::string& mm_hash,
                        std::int64_t num_embeds);

  // The hashes evicted since the last call that are absent now; clears them.
  std::vector<std::string> GetFreedMmHashes();

  // As constructed; pending reports are forgotten.
  void Reset();

  std::int64_t num_free_slots() const { return num_free_slots_; }
  std::int64_t num_freeable_slots() const { return num_freeable_slots_; }

 private:
  struct Entry {
    std::int64_t num_embeds;
    std::set<std::string> holders;
  };

  bool NeedsStill(const std::string& request_id, const std::string& mm_hash) const;
  void EvictOldest();

  std::int64_t capacity_;
  std::int64_t num_free_slots_;
  std::int64_t num_freeable_slots_;
  std::map<std::string, Entry> cached_;
  // request -> held input -> its hash
  std::map<std::string, std::map<int, std::string>> held_;
  // Hashes without a holder, oldest first.
  std::deque<std::string> evictable_;
  std::vector<std::string> freed_;
};

}  // namespace vllm::v1::core

#endif  // EVICTCHECK_ENCODER_CACHE_MANAGER_H_
