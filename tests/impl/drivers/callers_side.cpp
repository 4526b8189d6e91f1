// A driver for a port whose callers mend the first problem: they keep a free back while the request still needs
// another occurrence of the hash, so that the manager sees one free for the last of them.
#include "evictcheck/driver.h"
#include "vllm/v1/core/encoder_cache_manager.h"

#include <map>

using evictcheck::Request;

struct Scheduler {
  static constexpr bool kHasCounters = true, kHasIds = true, kHasReset = true;

  vllm::v1::core::EncoderCacheManager manager;
  std::map<std::string, std::set<int>> kept_back;

  explicit Scheduler(std::int64_t capacity) : manager(capacity) {}

  bool Check(const Request& request, int input) {
    kept_back[request.id].erase(input);
    return manager.CheckAndUpdateCache(request.id, input, request.At(input).mm_hash);
  }

  bool CanAllocate(const Request& request, int input, std::int64_t budget, std::int64_t promised) {
    return manager.CanAllocate(request.At(input).embeds, budget, promised);
  }

  void Allocate(const Request& request, int input) {
    manager.Allocate(request.id, input, request.At(input).mm_hash, request.At(input).embeds);
  }

  void FreeInput(const Request& request, int input) {
    const std::set<int> ids = Ids(request);
    if (ids.count(input) == 0) return;
    std::set<int>& kept = kept_back[request.id];
    kept.insert(input);
    const std::string& mm_hash = request.At(input).mm_hash;
    for (const int other : ids) {
      if (other != input && request.At(other).mm_hash == mm_hash) return;
    }
    for (auto it = kept.begin(); it != kept.end();) {
      if (request.At(*it).mm_hash == mm_hash) {
        manager.FreeEncoderInput(request.id, *it, mm_hash, request.At(*it).embeds);
        it = kept.erase(it);
      } else {
        ++it;
      }
    }
  }

  std::set<int> Ids(const Request& request) {
    std::set<int> ids = manager.GetCachedInputIds(request.id);
    for (const int input : kept_back[request.id]) ids.erase(input);
    return ids;
  }

  std::set<std::string> Drain() {
    const auto freed = manager.GetFreedMmHashes();
    return {freed.begin(), freed.end()};
  }

  void Reset() {
    manager.Reset();
    kept_back.clear();
  }

  std::pair<std::int64_t, std::int64_t> Counters() {
    return {manager.num_free_slots(), manager.num_freeable_slots()};
  }
};

int main() { return evictcheck::Serve<Scheduler>(); }
