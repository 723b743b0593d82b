// What pointer, wheel and keys do with a heat map. A drag zooms to what it encloses, one with Shift moves the map, a click chooses a cell.
import { useEffect, useState } from 'preact/hooks';
import { between, cellAt, isInside, type Cell, type Frame, type Point } from './frame';
import { clamped, whole, zoomed, type Heat } from './model';
import type { Window } from './paint';

export interface Brush {
  from: Point;
  to: Point;
}
interface Controlled {
  heat: Heat;
  settled: Window; // what is shown while nobody moves it
  size: { width: number; height: number };
  box: { current: HTMLElement | null };
  chosen: Cell | null;
  onWindow: (window: Window) => void;
  onChoose: (cell: Cell) => void;
}

const CLICK = 6; // pixels that a click may move

/** The window that also has the cell. */
function including(heat: Heat, window: Window, { row, column }: Cell): Window {
  return clamped(heat, { ...window, row: Math.min(row, Math.max(window.row, row - window.rows + 1)), column: Math.min(column, Math.max(window.column, column - window.columns + 1)) });
}

/** Whether the key means something here. */
function press(event: KeyboardEvent, { heat, onWindow, onChoose }: Controlled, window: Window, cursor: Cell, goTo: (cell: Cell) => void): boolean {
  const far = event.shiftKey ? 10 : 1;
  const moves: Record<string, [number, number]> = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] };
  const move = moves[event.key];
  if (move) goTo({ row: cursor.row + move[0], column: cursor.column + move[1] });
  else if (event.key === 'Home') goTo({ row: heat.originRow ?? cursor.row, column: heat.originColumn ?? 0 });
  else if (event.key === 'Enter' || event.key === ' ') onChoose(cursor);
  else if (event.key === '+' || event.key === '=') onWindow(zoomed(heat, window, 0.5, cursor.row, cursor.column));
  else if (event.key === '-') onWindow(zoomed(heat, window, 2, cursor.row, cursor.column));
  else if (event.key === '0' || event.key === 'Escape') onWindow(whole(heat));
  else return false;
  return true;
}

/** The cell under the cursor: of the arrow keys, else of the pointer, else the one that was chosen. */
function useCursor({ heat, chosen, onWindow }: Controlled, frame: Frame) {
  const [at, setAt] = useState<Cell | null>(null);
  const cursor = at ?? chosen ?? { row: heat.originRow ?? frame.window.row, column: heat.originColumn ?? frame.window.column };
  const goTo = (cell: Cell) => {
    const row = Math.min(heat.rows.length - 1, Math.max(0, cell.row));
    const column = Math.min(heat.columns - 1, Math.max(0, cell.column));
    setAt({ row, column });
    if (!isInside(frame, { row, column })) onWindow(including(heat, frame.window, { row, column }));
  };
  return { at, setAt, cursor, goTo };
}

/** With two fingers, or Ctrl and the wheel; the wheel alone scrolls the page. */
function useWheel({ heat, box, onWindow }: Controlled, frame: Frame, pointOf: (event: MouseEvent) => Point) {
  const onWheel = (event: WheelEvent) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const cell = cellAt(frame, pointOf(event));
    onWindow(zoomed(heat, frame.window, event.deltaY > 0 ? 1.25 : 0.8, cell.row, cell.column));
  };
  useEffect(() => {
    const element = box.current;
    element?.addEventListener('wheel', onWheel, { passive: false });
    return () => element?.removeEventListener('wheel', onWheel);
  });
}

/** What is to be drawn meanwhile, and the handlers of the map's element. */
export function useGestures(map: Controlled) {
  const { heat, settled, size, box, onWindow, onChoose } = map;
  const { width, height } = size;
  const [moved, setMoved] = useState<{ from: Point; began: Window; window: Window } | null>(null);
  const [brush, setBrush] = useState<Brush | null>(null);
  const [tip, setTip] = useState<Point | null>(null);
  const frame: Frame = { window: moved?.window ?? settled, width, height };
  const { at, setAt, cursor, goTo } = useCursor(map, frame);
  const pointOf = (event: MouseEvent): Point => {
    const { left, top } = box.current!.getBoundingClientRect();
    return { x: Math.min(width, Math.max(0, event.clientX - left)), y: Math.min(height, Math.max(0, event.clientY - top)) };
  };
  useWheel(map, frame, pointOf);
  const onPointerDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    box.current?.setPointerCapture(event.pointerId);
    const from = pointOf(event);
    if (event.shiftKey) setMoved({ from, began: settled, window: settled });
    else setBrush({ from, to: from });
  };
  const onPointerMove = (event: PointerEvent) => {
    const point = pointOf(event);
    setAt(cellAt(frame, point));
    setTip(event.pointerType === 'touch' ? null : point);
    if (moved) {
      const { from, began } = moved;
      setMoved({ ...moved, window: clamped(heat, { ...began, column: began.column - ((point.x - from.x) / width) * began.columns, row: began.row - ((point.y - from.y) / height) * began.rows }) });
    }
    if (brush) setBrush({ ...brush, to: point });
  };
  const onPointerUp = (event: PointerEvent) => {
    if (moved) {
      onWindow(moved.window);
      return setMoved(null);
    }
    if (!brush) return;
    setBrush(null);
    const to = pointOf(event);
    if (Math.abs(to.x - brush.from.x) < CLICK && Math.abs(to.y - brush.from.y) < CLICK) return onChoose(cellAt(frame, to));
    onWindow(clamped(heat, between(cellAt(frame, brush.from), cellAt(frame, to))));
  };
  const onPointerCancel = () => {
    setBrush(null);
    setMoved(null);
  };
  const onPointerLeave = () => {
    setAt(null);
    setTip(null);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (press(event, map, frame.window, cursor, goTo)) event.preventDefault();
  };
  const handlers = { onKeyDown, onPointerDown, onPointerMove, onPointerUp, onPointerCancel, onPointerLeave, onDblClick: () => onWindow(whole(heat)) };
  return { frame, at, cursor, brush, moving: moved !== null, tip: brush || moved ? null : tip, handlers };
}
