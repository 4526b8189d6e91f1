#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vllm::v1::core {

// The manager as a port of an engine has it, with both problems mended in the manager.
class EncoderCacheManager {
 public:
  explicit EncoderCacheManager(int64_t cache_size);

  bool CheckAndUpdateCache(const std::string& request_id, int input_id, const std::string& mm_hash);
  bool CanAllocate(int64_t num_embeds, int64_t encoder_compute_budget, int64_t num_embeds_to_schedule);
  void Allocate(const std::string& request_id, int input_id, const std::string& mm_hash, int64_t num_embeds);
  std::set<int> GetCachedInputIds(const std::string& request_id) const;
  void FreeEncoderInput(const std::string& request_id, int input_id, const std::string& mm_hash,
                        int64_t num_embeds);
  std::vector<std::string> GetFreedMmHashes();
  void Reset();

  int64_t num_free_slots() const { return num_free_slots_; }
  int64_t num_freeable_slots() const { return num_freeable_slots_; }

 private:
  using Freeable = std::list<std::pair<std::string, int64_t>>;

  void FreeablePush(const std::string& mm_hash, int64_t num_embeds);

  int64_t cache_size_;
  int64_t num_free_slots_;
  int64_t num_freeable_slots_;
  std::unordered_map<std::string, std::set<std::string>> cached_;
  // request -> held input -> its hash
  std::unordered_map<std::string, std::map<int, std::string>> request_cached_ids_;
  Freeable freeable_;
  std::unordered_map<std::string, Freeable::iterator> freeable_index_;
  std::vector<std::string> freed_;
};

}  // namespace vllm::v1::core
