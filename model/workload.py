"""What is cached, for whom, in how much space.

A workload is the fixed part of a trace: the requests with their multimodal items, and the sizes that bound
them. Sizes are counted in encoder *embeds*, never in tokens or bytes.
"""

from msgspec import Struct

from model.errors import EvictcheckError


class WorkloadError(EvictcheckError):
    """A workload that cannot exist, or an input that it does not have."""


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """One multimodal item of a request.

    Attributes:
        mm_hash: Identity of the content; two items with one hash share one cache entry.
        embeds: Size of the encoder's output, in embeds; at least 1.
    """

    mm_hash: str
    embeds: int


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """A request and its items in prompt order; the index of an item is its input id."""

    request_id: str
    items: tuple[Item, ...]


class Workload(Struct, frozen=True, cache_hash=True, forbid_unknown_fields=True):
    """Everything that stays the same along a trace.

    Attributes:
        capacity: Embeds that the cache holds; at least 1.
        requests: The requests that may arrive, with distinct ids.
        compute_budget: Embeds that the encoder may compute in one scheduler pass (caller discipline only);
            at least 1. Upstream's defaults make it equal to the capacity.

    Raises:
        WorkloadError: A size below 1, an empty name, or two requests with one id.
    """

    capacity: int
    requests: tuple[Request, ...]
    compute_budget: int

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise WorkloadError(f"a capacity of {self.capacity} embeds holds nothing; it must be at least 1")
        if self.compute_budget < 1:
            raise WorkloadError(f"a compute budget of {self.compute_budget} embeds must be at least 1")
        ids = [request.request_id for request in self.requests]
        for request in self.requests:
            if not request.request_id:
                raise WorkloadError("a request has an empty request_id")
            if ids.count(request.request_id) > 1:
                raise WorkloadError(f"two requests are called {request.request_id!r}; ids must be distinct")
            for input_id, item in enumerate(request.items):
                where = f"input {input_id} of request {request.request_id!r}"
                if not item.mm_hash:
                    raise WorkloadError(f"{where} has an empty mm_hash")
                if item.embeds < 1:
                    raise WorkloadError(f"{where} has {item.embeds} embeds; it must have at least 1")

    def request(self, request_id: str) -> Request:
        """The request of that id.

        Raises:
            WorkloadError: The workload has no such request.
        """
        for request in self.requests:
            if request.request_id == request_id:
                return request
        known = ", ".join(request.request_id for request in self.requests) or "none"
        raise WorkloadError(f"there is no request {request_id!r} in the workload (it has: {known})")

    def item(self, request_id: str, input_id: int) -> Item:
        """The item at an input of a request.

        Raises:
            WorkloadError: The workload has no such request, or the request no such input.
        """
        for request in self.requests:
            if request.request_id == request_id and 0 <= input_id < len(request.items):
                return request.items[input_id]
        items = self.request(request_id).items
        known = f"its inputs are 0 to {len(items) - 1}" if items else "it has no inputs"
        raise WorkloadError(f"request {request_id!r} has no input {input_id} ({known})")
