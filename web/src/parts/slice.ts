// The rows of a long table that are in the document: those that are seen, and some around them.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';

const WHOLE_MAX = 200; // rows that a table has without this
const AROUND = 20; // rows above and below those that are seen

export interface Slice {
  sliced: boolean;
  first: number;
  end: number;
  before: number; // pixels of the rows that are left out above and below
  after: number;
  box: (element: HTMLDivElement | null) => void; // the element that scrolls
  row: (element: HTMLTableRowElement | null) => void; // any row, for its height
  onScroll: () => void;
}

/** Rows `first` to before `end` of `rows` that a box of this height shows when it is scrolled so far. */
export function sliceOf(rows: number, top: number, height: number, rowHeight: number): { first: number; end: number } {
  const first = Math.max(0, Math.min(rows - 1, Math.floor(top / rowHeight)) - AROUND);
  return { first, end: Math.min(rows, Math.floor((top + height) / rowHeight) + 1 + AROUND) };
}

export function useSlice(rows: number): Slice {
  const element = useRef<HTMLDivElement | null>(null);
  const [rowHeight, setRowHeight] = useState(40);
  const [seen, setSeen] = useState({ top: 0, height: 800 });
  const sliced = rows > WHOLE_MAX;
  const onScroll = useCallback(() => {
    const box = element.current;
    if (!box) return;
    setSeen((old) => (Math.abs(old.top - box.scrollTop) < 5 * 20 && old.height === box.clientHeight && box.scrollTop > 0 ? old : { top: box.scrollTop, height: box.clientHeight }));
  }, []);
  const box = useCallback((found: HTMLDivElement | null) => void (element.current = found), []);
  const row = useCallback((found: HTMLTableRowElement | null) => {
    const height = found?.getBoundingClientRect().height ?? 0;
    if (height > 10) setRowHeight((old) => (Math.abs(old - height) < 1 ? old : height));
  }, []);
  useEffect(onScroll, [sliced]);
  const part = sliced ? sliceOf(rows, seen.top, seen.height, rowHeight) : { first: 0, end: rows };
  return { sliced, ...part, before: part.first * rowHeight, after: (rows - part.end) * rowHeight, box, row, onScroll };
}
