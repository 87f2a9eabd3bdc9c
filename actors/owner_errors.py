"""What can happen to the owner of a table while it is called; never shown to a client."""

from cluster.errors import OutcomeUnknown, ServiceUnavailable


class OwnerGone(ServiceUnavailable):
    """The owner has left and did nothing; ask the catalog for it again."""


class OwnerLost(OutcomeUnknown):
    """The owner went away during the call; the same call to the next owner tells what it did."""
