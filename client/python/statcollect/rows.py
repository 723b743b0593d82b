"""Lists of answers that turn into tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

T = TypeVar("T")


class Rows(list[T], Generic[T]):
    """A list of dataclasses of one type. A table has a column for each field; fields of nested dataclasses are named with a dot, such as
    `stats.l2`. Each conversion raises StatcollectError if its library is not installed."""

    def __init__(self, rows: Iterable[T], row_type: type[T]) -> None:
        super().__init__(rows)
        self.row_type = row_type

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame; numbers that may be absent are NaN or, for integers, `Int64` with NA."""
        from . import tables

        return tables.to_pandas(self, self.row_type)

    def to_polars(self) -> polars.DataFrame:
        """A polars DataFrame; what is absent is null."""
        from . import tables

        return tables.to_polars(self, self.row_type)

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table; what is absent is null."""
        from . import tables

        return tables.to_arrow(self, self.row_type)

    def _repr_html_(self) -> str:
        from . import notebook

        return notebook.rows_html(self, self.row_type)


class TableMixin:
    """An answer whose most important part is one list."""

    def table(self) -> Rows[Any]:
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The answer's list as `Rows.to_pandas` gives it."""
        return self.table().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The answer's list as `Rows.to_polars` gives it."""
        return self.table().to_polars()

    def to_arrow(self) -> pyarrow.Table:
        """The answer's list as `Rows.to_arrow` gives it."""
        return self.table().to_arrow()

    def _repr_html_(self) -> str:
        from . import notebook

        return notebook.answer_html(self)
