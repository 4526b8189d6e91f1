#include "vllm/v1/core/encoder_cache_manager.h"

#include <algorithm>
#include <utility>

namespace vllm::v1::core {

EncoderCacheManager::EncoderCacheManager(std::int64_t capacity)
    : capacity_(capacity), num_free_slots_(capacity), num_freeable_slots_(capacity) {}

bool EncoderCacheManager::CheckAndUpdateCache(const std::string& request_id, int input_id,
                                              const std::string& mm_hash) {
  const auto found = cached_.find(mm_hash);
  if (found == cached_.end()) return false;
  Entry& entry = found->second;
  if (entry.holders.empty()) {
    evictable_.erase(std::find(evictable_.begin(), evictable_.end(), mm_hash));
    num_freeable_slots_ -= entry.num_embeds;
  }
  entry.holders.insert(request_id);
  held_[request_id][input_id] = mm_hash;
  return true;
}

bool EncoderCacheManager::CanAllocate(std::int64_t num_embeds, std::int64_t encoder_compute_budget,
                                      std::int64_t num_embeds_to_schedule) {
  const std::int64_t needed = num_embeds + num_embeds_to_schedule;
  if (num_embeds > encoder_compute_budget || needed > num_freeable_slots_) return false;
  while (needed > num_free_slots_) EvictOldest();
  return true;
}

void EncoderCacheManager::EvictOldest() {
  const auto found = cached_.find(evictable_.front());
  num_free_slots_ += found->second.num_embeds;
  cached_.erase(found);
  freed_.push_back(std::move(evictable_.front()));
  evictable_.pop_front();
}

void EncoderCacheManager::Allocate(const std::string& request_id, int input_id, const std::string& mm_hash,
                                   std::int64_t num_embeds) {
  cached_[mm_hash] = Entry{num_embeds, {request_id}};
  held_[request_id][input_id] = mm_hash;
  num_free_slots_ -= num_embeds;
  num_freeable_slots_ -= num_embeds;
}

std::set<int> EncoderCacheManager::GetCachedInputIds(const std::string& request_id) const {
  std::set<int> ids;
  const auto held = held_.find(request_id);
  if (held != held_.end()) {
    for (const auto& input : held->second) ids.insert(input.first);
  }
  return ids;
}

// The size is the one that the entry was allocated with, whatever the freeing request states.
void EncoderCacheManager::FreeEncoderInput(const std::string& request_id, int input_id,
                                           const std::string& mm_hash, std::int64_t /*num_embeds*/) {
  const auto held = held_.find(request_id);
  if (held == held_.end() || held->second.erase(input_id) == 0) return;
  if (held->second.empty()) held_.erase(held);
  const auto found = cached_.find(mm_hash);
  if (found == cached_.end() || NeedsStill(request_id, mm_hash)) return;
  Entry& entry = found->second;
  if (entry.holders.erase(request_id) == 0 || !entry.holders.empty()) return;
  evictable_.push_back(mm_hash);
  num_freeable_slots_ += entry.num_embeds;
}

bool EncoderCacheManager::NeedsStill(const std::string& request_id, const std::string& mm_hash) const {
#ifdef EVICTCHECK_EARLY_EVICTABLE
  static_cast<void>(request_id);
  static_cast<void>(mm_hash);
  return false;
#else
  const auto held = held_.find(request_id);
  return held != held_.end() && std::any_of(held->second.begin(), held->second.end(),
                                            [&](const auto& input) { return input.second == mm_hash; });
#endif
}

std::vector<std::string> EncoderCacheManager::GetFreedMmHashes() {
  std::vector<std::string> freed;
  freed.swap(freed_);
#ifndef EVICTCHECK_UNFILTERED_FREED
  freed.erase(std::remove_if(freed.begin(), freed.end(),
                             [this](const std::string& mm_hash) { return cached_.count(mm_hash) != 0; }),
              freed.end());
#endif
  return freed;
}

void EncoderCacheManager::Reset() { *this = EncoderCacheManager(capacity_); }

}  // namespace vllm::v1::core
