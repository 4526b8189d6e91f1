// A driver around any vllm::v1::core::EncoderCacheManager of the usual shape.
//
// What the class offers is found out while this compiles. It may lack Reset, the two counters (then both) and
// GetCachedInputIds. CheckAndUpdateCache, Allocate and FreeEncoderInput may take one more argument at the end,
// from which they know the request's other inputs; its type says what is handed over:
//   std::map or std::unordered_map<int, std::string>   input id -> hash, of all inputs of the request
//   std::vector<std::string>                           the hashes of all inputs, in their order
//   std::set or std::unordered_set<std::string>        the hashes of the other inputs that the manager lists
#include EVICTCHECK_HEADER

#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "evictcheck/driver.h"

namespace {

using evictcheck::Item;
using evictcheck::Request;

template <class M>
using ResetOf = decltype(std::declval<M&>().Reset());
template <class M>
using CountersOf = decltype(std::declval<M&>().num_free_slots() + std::declval<M&>().num_freeable_slots());
template <class M>
using IdsOf = decltype(std::declval<M&>().GetCachedInputIds(std::declval<const std::string&>()));

template <template <class> class Member, class M, class = void>
struct Offers : std::false_type {};
template <template <class> class Member, class M>
struct Offers<Member, M, std::void_t<Member<M>>> : std::true_type {};

// The lists of a manager without GetCachedInputIds are not asked for; frees of a request then try every input.
template <class M>
std::set<int> ListedInputs(M& manager, const Request& request) {
  std::set<int> ids;
  if constexpr (Offers<IdsOf, M>::value) {
    for (const auto& id : manager.GetCachedInputIds(request.id)) ids.insert(static_cast<int>(id));
  } else {
    for (std::size_t id = 0; id < request.items.size(); ++id) ids.insert(static_cast<int>(id));
  }
  return ids;
}

// What a method may take at its end to know the request's other inputs.
template <class Hashes, class M>
Hashes OtherInputs(M& manager, const Request& request, int input_id) {
  Hashes hashes;
  if constexpr (std::is_same_v<Hashes, std::vector<std::string>>) {
    for (const Item& item : request.items) hashes.push_back(item.mm_hash);
  } else if constexpr (std::is_same_v<typename Hashes::key_type, int>) {
    int id = 0;
    for (const Item& item : request.items) hashes[id++] = item.mm_hash;
  } else {
    for (const int id : ListedInputs(manager, request)) {
      if (id != input_id) hashes.insert(request.At(id).mm_hash);
    }
  }
  return hashes;
}

template <class...>
struct Types {};
using HandedOver = Types<std::map<int, std::string>, std::unordered_map<int, std::string>, std::vector<std::string>,
                         std::set<std::string>, std::unordered_set<std::string>>;

template <class Method, class M, class... Arguments>
auto CallWith(Types<>, Method method, M& manager, const Request&, int, const Arguments&... arguments) {
  // None of the shapes fits: the compiler's complaint about this call names the method.
  return method(manager, arguments...);
}

template <class First, class... Others, class Method, class M, class... Arguments>
auto CallWith(Types<First, Others...>, Method method, M& manager, const Request& request, int input_id,
              const Arguments&... arguments) {
  if constexpr (std::is_invocable_v<Method, M&, const Arguments&..., First&>) {
    First others = OtherInputs<First>(manager, request, input_id);
    return method(manager, arguments..., others);
  } else {
    return CallWith(Types<Others...>{}, method, manager, request, input_id, arguments...);
  }
}

// Calls a method with the usual arguments, or with the request's other inputs after them.
template <class Method, class M, class... Arguments>
auto CallMethod(Method method, M& manager, const Request& request, int input_id, const Arguments&... arguments) {
  if constexpr (std::is_invocable_v<Method, M&, const Arguments&...>) {
    return method(manager, arguments...);
  } else {
    return CallWith(HandedOver{}, method, manager, request, input_id, arguments...);
  }
}

// The manager as the protocol knows it. A template, so that calls of what a class lacks are never compiled.
template <class M>
struct Port {
  static constexpr bool kHasReset = Offers<ResetOf, M>::value;
  static constexpr bool kHasCounters = Offers<CountersOf, M>::value;
  static constexpr bool kHasIds = Offers<IdsOf, M>::value;

  M manager;

  explicit Port(std::int64_t capacity) : manager(capacity) {}

  bool Check(const Request& request, int input) {
    const auto method = [](auto& m, const auto&... a) -> decltype(m.CheckAndUpdateCache(a...)) {
      return m.CheckAndUpdateCache(a...);
    };
    return CallMethod(method, manager, request, input, request.id, input, request.At(input).mm_hash);
  }

  bool CanAllocate(const Request& request, int input, std::int64_t budget, std::int64_t promised) {
    return manager.CanAllocate(request.At(input).embeds, budget, promised);
  }

  void Allocate(const Request& request, int input) {
    const auto method = [](auto& m, const auto&... a) -> decltype(m.Allocate(a...)) { return m.Allocate(a...); };
    const Item& item = request.At(input);
    CallMethod(method, manager, request, input, request.id, input, item.mm_hash, item.embeds);
  }

  void FreeInput(const Request& request, int input) {
    const auto method = [](auto& m, const auto&... a) -> decltype(m.FreeEncoderInput(a...)) {
      return m.FreeEncoderInput(a...);
    };
    const Item& item = request.At(input);
    CallMethod(method, manager, request, input, request.id, input, item.mm_hash, item.embeds);
  }

  std::set<int> Ids(const Request& request) { return ListedInputs(manager, request); }

  std::set<std::string> Drain() {
    std::set<std::string> freed;
    for (const auto& mm_hash : manager.GetFreedMmHashes()) freed.insert(std::string(mm_hash));
    return freed;
  }

  void Reset() {
    if constexpr (kHasReset) manager.Reset();
  }

  std::pair<std::int64_t, std::int64_t> Counters() {
    if constexpr (kHasCounters) return {manager.num_free_slots(), manager.num_freeable_slots()};
    return {0, 0};
  }
};

}  // namespace

int main() { return evictcheck::Serve<Port<vllm::v1::core::EncoderCacheManager>>(); }
