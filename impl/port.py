"""This project's own manager: correct, and made of small methods so that a defect is one of them replaced.

It keeps the bookkeeping of upstream's latest release (counters, reference sets, an evictable queue) instead of
deriving it as the reference model does: that is what implementations get wrong. It does not assert that an
allocation has room; that is the caller's part, and `capacity-respected` judges it.
"""

from collections import OrderedDict

from model.manager import ManagedRequest


class PortManager:
    """An encoder-cache manager of a given capacity in embeds.

    Attributes:
        capacity: Embeds that it may cache.
        num_free_slots: Embeds that no entry uses.
        num_freeable_slots: Embeds free, or free after evicting all that is evictable.
        cached: For each cached hash the ids of the requests that refer to it.
        embeds: For each cached hash the size that it was allocated with, in embeds.
        request_cached_ids: For each request that holds something, the input ids held.
        freeable: Hashes that may be evicted, with their embeds, oldest first.
        freed: Hashes evicted since the last report, in order.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_free_slots = capacity
        self.num_freeable_slots = capacity
        self.cached: dict[str, set[str]] = {}
        self.embeds: dict[str, int] = {}
        self.request_cached_ids: dict[str, set[int]] = {}
        self.freeable: OrderedDict[str, int] = OrderedDict()
        self.freed: list[str] = []

    def reset(self) -> None:
        """As constructed; pending reports are forgotten."""
        self._forget_entries()
        self._forget_references()
        self._forget_pending()

    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        """Whether the item is cached; a hit holds it for this occurrence."""
        mm_hash = request.mm_features[input_id].identifier
        if mm_hash not in self.cached:
            return False
        if not self.cached[mm_hash]:
            self._leave_queue(mm_hash)
        self._refer(request, mm_hash)
        self._list(request, input_id)
        return True

    def can_allocate(
        self,
        request: ManagedRequest,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        """Whether there is room, after evicting the oldest entries as far as needed."""
        embeds = request.get_num_encoder_embeds(input_id)
        if embeds > encoder_compute_budget:
            return False
        needed = embeds + num_embeds_to_schedule
        if needed > self.num_freeable_slots:
            return False
        self._make_room(needed)
        return True

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        """Makes the entry, held by this occurrence; the caller has asked `can_allocate` in this pass."""
        mm_hash = request.mm_features[input_id].identifier
        embeds = request.get_num_encoder_embeds(input_id)
        self.cached[mm_hash] = set()
        self.embeds[mm_hash] = embeds
        self.num_free_slots -= embeds
        self.num_freeable_slots -= embeds
        self._refer(request, mm_hash)
        self._list(request, input_id)

    def get_cached_input_ids(self, request: ManagedRequest) -> set[int]:
        """The held occurrences of a request, as a copy."""
        return set(self.request_cached_ids.get(request.request_id, ()))

    def free_encoder_input(self, request: ManagedRequest, input_id: int) -> None:
        """This occurrence is no longer needed; nothing happens if it is not held."""
        held = self.request_cached_ids.get(request.request_id, set())
        if input_id not in held:
            return
        held.remove(input_id)
        if not held:
            self._unlist(request)
        mm_hash = request.mm_features[input_id].identifier
        holders = self.cached.get(mm_hash, set())
        if request.request_id not in holders or self._needs_still(request, mm_hash):
            return
        holders.remove(request.request_id)
        if not holders:
            self._join_queue(request, input_id, mm_hash)

    def free(self, request: ManagedRequest) -> None:
        """No occurrence of the request is needed any more."""
        for input_id in sorted(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, input_id)

    def get_freed_mm_hashes(self) -> list[str]:
        """The hashes evicted since the last report that are absent now, each once; clears them."""
        report = [mm_hash for mm_hash in dict.fromkeys(self.freed) if self._is_reported(mm_hash)]
        self._forget_pending()
        return report

    def _make_room(self, needed: int) -> None:
        while needed > self.num_free_slots:
            self._evict()

    def _evict(self) -> None:
        mm_hash, embeds = self._next_victim()
        del self.cached[mm_hash]
        del self.embeds[mm_hash]
        self.freed.append(mm_hash)
        self._return_slots(embeds)

    def _next_victim(self) -> tuple[str, int]:
        return self.freeable.popitem(last=False)

    def _return_slots(self, embeds: int) -> None:
        self.num_free_slots += embeds

    def _leave_queue(self, mm_hash: str) -> None:
        self.num_freeable_slots -= self.freeable.pop(mm_hash)

    def _join_queue(self, request: ManagedRequest, input_id: int, mm_hash: str) -> None:
        embeds = self._size_on_free(request, input_id, mm_hash)
        self.freeable[mm_hash] = embeds
        self.num_freeable_slots += embeds

    def _size_on_free(self, request: ManagedRequest, input_id: int, mm_hash: str) -> int:
        return self.embeds[mm_hash]

    def _refer(self, request: ManagedRequest, mm_hash: str) -> None:
        self.cached[mm_hash].add(request.request_id)

    def _list(self, request: ManagedRequest, input_id: int) -> None:
        self.request_cached_ids.setdefault(request.request_id, set()).add(input_id)

    def _unlist(self, request: ManagedRequest) -> None:
        del self.request_cached_ids[request.request_id]

    def _needs_still(self, request: ManagedRequest, mm_hash: str) -> bool:
        held = self.request_cached_ids.get(request.request_id, ())
        return any(request.mm_features[input_id].identifier == mm_hash for input_id in held)

    def _is_reported(self, mm_hash: str) -> bool:
        return mm_hash not in self.cached

    def _forget_entries(self) -> None:
        self.cached.clear()
        self.embeds.clear()
        self.freeable.clear()
        self.num_free_slots = self.capacity
        self.num_freeable_slots = self.capacity

    def _forget_references(self) -> None:
        self.request_cached_ids.clear()

    def _forget_pending(self) -> None:
        self.freed.clear()
