// Tables: sorted by a click on a column's name, filtered by words, in pages.

import { useId, useMemo, useState, type ReactNode } from "react";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => ReactNode;
  sort?: (row: Row) => number | string; // by what rows are sorted; none: they are not
  isNumber?: boolean;
  width?: "wide" | "widest"; // shown only where there is that much room
  className?: string;
}

export interface Order {
  column: string;
  isFalling: boolean;
}

interface Props<Row> {
  caption: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  keyOf: (row: Row) => string | number;
  words?: (row: Row) => string; // what a filter looks in; none: there is no filter
  order?: Order;
  pageSize?: number;
  empty: ReactNode;
}

export function Table<Row>(props: Props<Row>) {
  const { rows, columns, words, pageSize = 50 } = props;
  const [order, setOrder] = useState<Order | undefined>(props.order);
  const [filter, setFilter] = useState("");
  const [page, setPage] = useState(0);

  const found = useMemo(() => {
    const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = words
      ? rows.filter((row) => wanted.every((word) => words(row).toLowerCase().includes(word)))
      : rows;
    const by = columns.find((column) => column.name === order?.column)?.sort;
    return by ? sorted(matching, by, order?.isFalling ?? false) : matching;
  }, [rows, columns, words, filter, order]);

  const pages = Math.max(1, Math.ceil(found.length / pageSize));
  const shown = Math.min(page, pages - 1);
  const onSort = (column: string) =>
    setOrder((before) => ({ column, isFalling: before?.column === column && !before.isFalling }));

  if (rows.length === 0) return <p className="empty">{props.empty}</p>;
  return (
    <>
      {words && rows.length > 8 && (
        <Filter name={props.caption} value={filter} onChange={(text) => (setFilter(text), setPage(0))} />
      )}
      <div className="scrolled">
        <table>
          <caption className="unseen">{props.caption}</caption>
          <thead>
            <tr>
              {columns.map((column) => (
                <Heading key={column.name} column={column} order={order} onSort={onSort} />
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(shown * pageSize, (shown + 1) * pageSize).map((row) => (
              <tr key={props.keyOf(row)}>
                {columns.map((column) => (
                  <td key={column.name} className={classOf(column)} data-label={column.name}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.length === 0 && <p className="empty">nothing here matches “{filter}”</p>}
      {pages > 1 && <Pages page={shown} pages={pages} total={found.length} onPage={setPage} />}
    </>
  );
}

function classOf<Row>({ isNumber, width, className }: Column<Row>): string | undefined {
  return [isNumber && "number", width, className].filter(Boolean).join(" ") || undefined;
}

function sorted<Row>(
  rows: readonly Row[],
  by: (row: Row) => number | string,
  isFalling: boolean,
): Row[] {
  const sign = isFalling ? -1 : 1;
  return rows
    .map((row) => ({ row, key: by(row) }))
    .sort((a, b) => {
      if (typeof a.key === "number" && typeof b.key === "number") return sign * (a.key - b.key);
      return sign * String(a.key).localeCompare(String(b.key));
    })
    .map(({ row }) => row);
}

function Heading<Row>(props: {
  column: Column<Row>;
  order: Order | undefined;
  onSort: (column: string) => void;
}) {
  const { column, order } = props;
  const isBy = order?.column === column.name;
  const sort = isBy ? (order.isFalling ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" className={classOf(column)} aria-sort={sort}>
      {column.sort ? (
        <button type="button" onClick={() => props.onSort(column.name)}>
          {column.name}
          <span aria-hidden="true">{isBy ? (order.isFalling ? " ↓" : " ↑") : ""}</span>
        </button>
      ) : (
        column.name
      )}
    </th>
  );
}

export function Filter(props: {
  name: string;
  value: string;
  onChange: (text: string) => void;
}) {
  const id = useId();
  return (
    <div className="filter">
      <label htmlFor={id} className="unseen">
        Filter {props.name}
      </label>
      <input
        id={id}
        type="search"
        placeholder="Filter: name, user, state, node …"
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
      />
    </div>
  );
}

function Pages(props: {
  page: number;
  pages: number;
  total: number;
  onPage: (page: number) => void;
}) {
  const { page, pages } = props;
  return (
    <nav className="pages" aria-label="Pages">
      <button type="button" disabled={page === 0} onClick={() => props.onPage(page - 1)}>
        Previous
      </button>
      <span>
        {page + 1} of {pages} ({props.total.toLocaleString("en")} rows)
      </span>
      <button type="button" disabled={page === pages - 1} onClick={() => props.onPage(page + 1)}>
        Next
      </button>
    </nav>
  );
}
