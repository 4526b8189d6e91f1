#include "vllm/v1/core/encoder_cache_manager.h"

namespace vllm::v1::core {

EncoderCacheManager::EncoderCacheManager(int64_t cache_size)
    : cache_size_(cache_size), num_free_slots_(cache_size), num_freeable_slots_(cache_size) {}

void EncoderCacheManager::FreeablePush(const std::string& mm_hash, int64_t num_embeds) {
  freeable_.emplace_back(mm_hash, num_embeds);
  freeable_index_[mm_hash] = std::prev(freeable_.end());
}

bool EncoderCacheManager::CheckAndUpdateCache(const std::string& request_id, int input_id,
                                              const std::string& mm_hash) {
  auto cit = cached_.find(mm_hash);
  if (cit == cached_.end()) return false;
  if (cit->second.empty()) {
    auto fit = freeable_index_.find(mm_hash);
    num_freeable_slots_ -= fit->second->second;
    freeable_.erase(fit->second);
    freeable_index_.erase(fit);
  }
  cit->second.insert(request_id);
  request_cached_ids_[request_id].insert(input_id);
  return true;
}

bool EncoderCacheManager::CanAllocate(int64_t num_embeds, int64_t encoder_compute_budget,
                                      int64_t num_embeds_to_schedule) {
  if (num_embeds > encoder_compute_budget) return false;
  num_embeds += num_embeds_to_schedule;
  if (num_embeds <= num_free_slots_) return true;
  if (num_embeds > num_freeable_slots_) return false;
  while (num_embeds > num_free_slots_) {
    auto [mm_hash, size] = freeable_.front();
    freeable_.pop_front();
    freeable_index_.erase(mm_hash);
    cached_.erase(mm_hash);
    freed_.push_back(mm_hash);
    num_free_slots_ += size;
  }
  return true;
}

void EncoderCacheManager::Allocate(const std::string& request_id, int input_id, const std::string& mm_hash,
                                   int64_t num_embeds) {
  auto [cit, inserted] = cached_.try_emplace(mm_hash);
  cit->second.insert(request_id);
  request_cached_ids_[request_id].insert(input_id);
  num_free_slots_ -= num_embeds;
  num_freeable_slots_ -= num_embeds;
}

std::set<int> EncoderCacheManager::GetCachedInputIds(const std::string& request_id) const {
  auto it = request_cached_ids_.find(request_id);
  return it == request_cached_ids_.end() ? std::set<int>{} : it->second;
}

void EncoderCacheManager::FreeEncoderInput(const std::string& request_id, int input_id,
                                           const std::string& mm_hash, int64_t num_embeds) {
  auto rit = request_cached_ids_.find(request_id);
  if (rit != request_cached_ids_.end()) {
    rit->second.erase(input_id);
    if (rit->second.empty()) request_cached_ids_.erase(rit);
  }
  auto cit = cached_.find(mm_hash);
  if (cit == cached_.end() || cit->second.empty()) return;
  cit->second.erase(request_id);
  if (cit->second.empty()) {
    FreeablePush(mm_hash, num_embeds);
    num_freeable_slots_ += num_embeds;
  }
}

std::vector<std::string> EncoderCacheManager::GetFreedMmHashes() {
  std::vector<std::string> freed;
  freed.swap(freed_);
  return freed;
}

void EncoderCacheManager::Reset() {
  cached_.clear();
  request_cached_ids_.clear();
  freeable_.clear();
  freeable_index_.clear();
  freed_.clear();
  num_free_slots_ = cache_size_;
  num_freeable_slots_ = cache_size_;
}

}  // namespace vllm::v1::core
