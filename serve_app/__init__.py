"""How HTTP maps onto the domain: parse, authenticate, authorize, translate."""
