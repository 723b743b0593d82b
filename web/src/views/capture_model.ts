// Captured values: their bytes as numbers, their histograms, and where two of them differ.

/** float16, bfloat16 or fp8 of these bits. */
function narrow(bits: number, exponentBits: number, mantissaBits: number, finiteOnly = false): number {
  const sign = bits >> (exponentBits + mantissaBits) ? -1 : 1;
  const exponent = (bits >> mantissaBits) & ((1 << exponentBits) - 1);
  const mantissa = bits & ((1 << mantissaBits) - 1);
  const bias = (1 << (exponentBits - 1)) - 1;
  const last = (1 << exponentBits) - 1;
  if (exponent === 0) return sign * mantissa * 2 ** (1 - bias - mantissaBits);
  if (exponent === last && !finiteOnly) return mantissa === 0 ? sign * Infinity : NaN;
  if (exponent === last && mantissa === (1 << mantissaBits) - 1) return NaN;
  return sign * (1 + mantissa / 2 ** mantissaBits) * 2 ** (exponent - bias);
}

type Reader = readonly [bytes: number, read: (view: DataView, at: number) => number];
const READERS: Record<string, Reader> = {
  f64: [8, (view, at) => view.getFloat64(at, true)],
  f32: [4, (view, at) => view.getFloat32(at, true)],
  f16: [2, (view, at) => narrow(view.getUint16(at, true), 5, 10)],
  bf16: [2, (view, at) => narrow(view.getUint16(at, true), 8, 7)],
  f8e4m3: [1, (view, at) => narrow(view.getUint8(at), 4, 3, true)],
  f8e5m2: [1, (view, at) => narrow(view.getUint8(at), 5, 2)],
  i64: [8, (view, at) => Number(view.getBigInt64(at, true))],
  i32: [4, (view, at) => view.getInt32(at, true)],
  i16: [2, (view, at) => view.getInt16(at, true)],
  i8: [1, (view, at) => view.getInt8(at)],
  u8: [1, (view, at) => view.getUint8(at)],
  bool: [1, (view, at) => view.getUint8(at)],
};

/** The numbers; null: of a type that this page does not know, for which statctl has them. */
export function numbersOf(bytes: Uint8Array, dtype: string): Float64Array | null {
  const reader = READERS[dtype];
  if (!reader) return null;
  const [size, read] = reader;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float64Array.from({ length: Math.floor(bytes.byteLength / size) }, (_, i) => read(view, i * size));
}

export interface Bins {
  low: number;
  high: number;
  counts: number[][]; // of each list of values
  notFinite: number[];
}

/** Histograms of several lists of values on one axis. */
export function binsOf(lists: readonly Float64Array[], bins = 60): Bins {
  let low = Infinity;
  let high = -Infinity;
  for (const values of lists) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const notFinite = lists.map(() => 0);
  const counts = lists.map((values, i) => {
    const found = new Array<number>(bins).fill(0);
    for (const value of values) {
      if (Number.isFinite(value)) ++found[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))]!;
      else ++notFinite[i]!;
    }
    return found;
  });
  return { low, high, counts, notFinite };
}

export interface Difference {
  index: number; // in row-major order
  place: string; // "[0, 3]"
  a: number;
  b: number;
}

/** Whether two elements count as the same: NaN is NaN. */
const same = (a: number, b: number) => a === b || (Number.isNaN(a) && Number.isNaN(b));
const sizeOf = (one: Difference) => {
  const size = Math.abs(one.b - one.a);
  return Number.isNaN(size) ? Infinity : size;
};

export function placeOf(index: number, shape: readonly number[]): string {
  const places: number[] = [];
  let rest = index;
  for (let i = shape.length - 1; i >= 0; --i) {
    const side = Math.max(1, shape[i] ?? 1);
    places.unshift(rest % side);
    rest = Math.floor(rest / side);
  }
  return `[${places.join(', ')}]`;
}

/** The elements that differ: how many, and the `most` that do so most. */
export function differencesOf(a: Float64Array, b: Float64Array, shape: readonly number[], most = 20): { different: number; compared: number; farthest: Difference[]; deltas: Float64Array } {
  const compared = Math.min(a.length, b.length);
  const deltas = new Float64Array(compared);
  let farthest: Difference[] = [];
  let different = 0;
  for (let index = 0; index < compared; ++index) {
    const [p, q] = [a[index]!, b[index]!];
    deltas[index] = same(p, q) ? 0 : q - p;
    if (same(p, q)) continue;
    ++different;
    const one = { index, place: '', a: p, b: q };
    if (farthest.length < most || sizeOf(one) > sizeOf(farthest.at(-1)!)) {
      farthest.push(one);
      farthest.sort((x, y) => sizeOf(y) - sizeOf(x));
      farthest = farthest.slice(0, most);
    }
  }
  return { different, compared, farthest: farthest.map((one) => ({ ...one, place: placeOf(one.index, shape) })), deltas };
}
