"""Transactions."""

from serve_app.dependencies import OnObject
from serve_app.routing import OperationRouter
from serve_app.wire.transactions import (
    AlterTransactionRequest,
    AlterTransactionResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
)

router = OperationRouter("/v1/transaction/{id}", ["Transaction"])


@router.not_built("/describe", DescribeTransactionResponse)
async def describe_transaction(call: OnObject, body: DescribeTransactionRequest) -> None:
    """Describe a transaction."""


@router.not_built("/alter", AlterTransactionResponse)
async def alter_transaction(call: OnObject, body: AlterTransactionRequest) -> None:
    """Change the status or the properties of a transaction."""
