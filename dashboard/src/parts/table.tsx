// Tables: sorted by a click on a column's name, filtered by words, in pages.

import { Fragment, useId, useMemo, useState, useSyncExternalStore, type ReactNode } from "react";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => ReactNode;
  sort?: (row: Row) => number | string; // by what rows are sorted; none: they are not
  isNumber?: boolean;
  width?: "wide" | "widest"; // shown only where there is that much room
  isBelow?: boolean; // on a narrow screen it has a line of its own, below the row
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
  filtered?: string; // what these words are
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

  const isNarrow = useNarrow();
  const inline = columns.filter((column) => !(isNarrow && column.isBelow));
  const below = columns.filter((column) => isNarrow && column.isBelow);
  const pages = Math.max(1, Math.ceil(found.length / pageSize));
  const shown = Math.min(page, pages - 1);
  const onSort = (column: string) =>
    setOrder((before) => ({ column, isFalling: before?.column === column && !before.isFalling }));

  if (rows.length === 0) return <p className="empty">{props.empty}</p>;
  return (
    <>
      {words && rows.length > 8 && (
        <Filter name={props.caption} among={props.filtered} value={filter} onChange={(text) => (setFilter(text), setPage(0))} />
      )}
      <div className="scrolled">
        <table>
          <caption className="unseen">{props.caption}</caption>
          <thead>
            <tr>
              {inline.map((column) => (
                <Heading key={column.name} column={column} order={order} onSort={onSort} />
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(shown * pageSize, (shown + 1) * pageSize).map((row) => (
              <Fragment key={props.keyOf(row)}>
                <tr className={below.length > 0 ? "parted" : undefined}>
                  {inline.map((column) => (
                    <td key={column.name} className={classOf(column)}>
                      {column.cell(row)}
                    </td>
                  ))}
                </tr>
                {below.map((column) => (
                  <tr key={column.name} className="below">
                    <td colSpan={inline.length} className={column.className}>
                      {column.cell(row)}
                    </td>
                  </tr>
                ))}
              </Fragment>
            ))}
          </tbody>
        </table>
      </div>
      {found.length === 0 && <p className="empty">nothing here matches “{filter}”</p>}
      {pages > 1 && <Pages page={shown} pages={pages} total={found.length} onPage={setPage} />}
    </>
  );
}

const narrow = matchMedia("(width < 720px)");

function useNarrow(): boolean {
  return useSyncExternalStore(
    (onChange) => {
      narrow.addEventListener("change", onChange);
      return () => narrow.removeEventListener("change", onChange);
    },
    () => narrow.matches,
  );
}

function classOf<Row>({ isNumber, width, className }: Column<Row>): string | undefined {
  return [isNumber && "number", width, className].filter(Boolean).join(" ") || undefined;
}

const names = new Intl.Collator(undefined, { numeric: true }); // node-2 comes before node-10

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
      return sign * names.compare(String(a.key), String(b.key));
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
          <span aria-hidden="true">{isBy ? (order.isFalling ? "\u00a0↓" : "\u00a0↑") : ""}</span>
        </button>
      ) : (
        column.name
      )}
    </th>
  );
}

export function Filter(props: {
  name: string;
  among?: string;
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
        placeholder={`Filter${props.among ? `: ${props.among}` : ""}`}
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
