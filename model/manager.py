"""What every implementation offers, with upstream's names.

`impl.inprocess` calls objects of this shape. The request that it hands over offers what any supported release
asks of a request (`impl.inprocess.RequestView`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol


class Feature(Protocol):
    """A multimodal item as upstream's requests carry it (0.11.0 on)."""

    @property
    def identifier(self) -> str:
        """Its `mm_hash`."""


class ManagedRequest(Protocol):
    """What a manager may ask of a request."""

    @property
    def request_id(self) -> str:
        """Its name."""

    @property
    def mm_features(self) -> Sequence[Feature]:
        """Its items, by input id."""

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Size of an input's encoder output, in embeds."""


class Manager(Protocol):
    """An encoder-cache manager, made with the capacity in embeds (upstream: `cache_size`).

    `reset` is not here because releases up to 0.15.1 lack it; `num_free_slots` and `num_freeable_slots` are not
    because a port need not expose them. Where they exist they are used.
    """

    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        """Whether the item is cached; a hit holds it for this occurrence."""

    def can_allocate(
        self,
        request: ManagedRequest,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        """Whether there is room, after evicting what must and may be evicted."""

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        """Makes the entry, held by this occurrence."""

    def get_cached_input_ids(self, request: ManagedRequest) -> Collection[int]:
        """The held occurrences of a request; some releases return their own live set."""

    def free_encoder_input(self, request: ManagedRequest, input_id: int) -> None:
        """This occurrence is no longer needed."""

    def free(self, request: ManagedRequest) -> None:
        """No occurrence of the request is needed any more."""

    def get_freed_mm_hashes(self) -> Iterable[str]:
        """The hashes evicted since the last call that are absent now; clears them."""
