// Where the cells of a heat map lie on the screen.
import type { Window } from './paint';

export interface Cell {
  row: number;
  column: number;
}
export interface Point {
  x: number; // pixels from the left
  y: number; // pixels from the top
}
/** A part of the map, and how large it is drawn, in pixels. */
export interface Frame {
  window: Window;
  width: number;
  height: number;
}

export const xOf = ({ window, width }: Frame, column: number) => ((column - window.column) / window.columns) * width;
export const yOf = ({ window, height }: Frame, row: number) => ((row - window.row) / window.rows) * height;

export const isInside = ({ window }: Frame, { row, column }: Cell) => row >= window.row && row < window.row + window.rows && column >= window.column && column < window.column + window.columns;

/** The cell at a point, or the nearest one. */
export function cellAt({ window, width, height }: Frame, point: Point): Cell {
  return {
    row: Math.min(window.row + window.rows - 1, Math.max(window.row, window.row + Math.floor((point.y / height) * window.rows))),
    column: Math.min(window.column + window.columns - 1, Math.max(window.column, window.column + Math.floor((point.x / width) * window.columns))),
  };
}

/** What a rectangle from one cell to another covers. */
export const between = (one: Cell, other: Cell): Window => ({
  row: Math.min(one.row, other.row),
  rows: Math.abs(one.row - other.row) + 1,
  column: Math.min(one.column, other.column),
  columns: Math.abs(one.column - other.column) + 1,
});
