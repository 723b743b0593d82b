// The bytes of a heat map's cells (HeatMap.cells of the API): what they mean, and their colours.

export const NO_DATA = 0;
export const IDENTICAL = 1;
export const WITHIN_MAX = 126;
export const MISSING = 127;
export const DIVERGED_MIN = 128;
const LEVELS_A_DECADE = 16;

export type State = 'no data' | 'identical' | 'within tolerance' | 'in one run only' | 'diverged';

export function stateOf(level: number): State {
  if (level === NO_DATA) return 'no data';
  if (level === IDENTICAL) return 'identical';
  if (level <= WITHIN_MAX) return 'within tolerance';
  return level === MISSING ? 'in one run only' : 'diverged';
}

/** Distance divided by tolerance; null where there is none. */
export function ratioOf(level: number): number | null {
  const state = stateOf(level);
  if (state === 'within tolerance') return 10 ** ((level - WITHIN_MAX) / LEVELS_A_DECADE);
  if (state === 'diverged') return level === 255 ? Infinity : 10 ** ((level - DIVERGED_MIN) / LEVELS_A_DECADE);
  return null;
}

/** "diverged, about 3 times the tolerance" */
export function describe(level: number): string {
  const ratio = ratioOf(level);
  if (ratio === null) return stateOf(level);
  // Also where the tolerance is 0, as of integers, and where the distance has no finite measure.
  if (ratio === Infinity) return 'diverged, far beyond the tolerance';
  // All that rounding or noise explains is in the highest level within tolerance.
  if (ratio === 1) return level <= WITHIN_MAX ? 'just within tolerance, or explained by rounding or noise' : 'just beyond the tolerance';
  // A level is one sixteenth of a factor of ten: more digits would be wrong.
  const times = ratio >= 1000 || ratio < 0.01 ? ratio.toExponential(0).replace('e+', 'e') : String(Number(ratio.toPrecision(1)));
  return `${stateOf(level)}, about ${times} times the tolerance`;
}

export type Rgb = readonly [number, number, number];

// Two arms with one order of lightness: the farther from the page's background, the farther apart the runs.
// Blue below the tolerance, orange to its dark end above: told apart with any colour vision.
interface Scheme {
  noData: string;
  identical: string;
  missing: string;
  within: readonly string[];
  diverged: readonly string[];
}
const SCHEMES: Record<'light' | 'dark', Scheme> = {
  light: {
    noData: '#ffffff',
    identical: '#eceff1',
    missing: '#6f6a7d',
    within: ['#dfe9f2', '#c3d8ea', '#9dc1de', '#78a8d0'],
    diverged: ['#f2a541', '#e57b28', '#c4501f', '#8f2a20', '#571019'],
  },
  dark: {
    noData: '#14181c',
    identical: '#22292f',
    missing: '#8d889b',
    within: ['#22333f', '#27465c', '#2c5c7f', '#3674a3'],
    diverged: ['#b4541c', '#d8762a', '#f09c42', '#f9c671', '#fff0c2'],
  },
};

export function rgb(hex: string): Rgb {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// Oklab, in which equal steps look equal.
function toLab(colour: Rgb): Rgb {
  const [r, g, b] = colour.map((c) => ((c / 255) <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)) as [number, number, number];
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s, 0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}
function toRgb([L, a, b]: Rgb): Rgb {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s];
  return linear.map((c) => {
    const clamped = Math.min(1, Math.max(0, c));
    return Math.round(255 * (clamped <= 0.0031308 ? 12.92 * clamped : 1.055 * clamped ** (1 / 2.4) - 0.055));
  }) as unknown as Rgb;
}

export function between(stops: readonly string[], at: number): Rgb {
  const place = Math.min(1, Math.max(0, at)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const from = toLab(rgb(stops[index] ?? '#000000'));
  const to = toLab(rgb(stops[index + 1] ?? '#000000'));
  const part = place - index;
  return toRgb(from.map((value, i) => value + part * ((to[i] ?? 0) - value)) as unknown as Rgb);
}

/** The colour of each level: of five decades below and above the tolerance, the ends beyond. */
export function coloursOf(theme: 'light' | 'dark'): Rgb[] {
  const scheme = SCHEMES[theme];
  const span = 5 * LEVELS_A_DECADE;
  return Array.from({ length: 256 }, (_, level): Rgb => {
    switch (stateOf(level)) {
      case 'no data':
        return rgb(scheme.noData);
      case 'identical':
        return rgb(scheme.identical);
      case 'in one run only':
        return rgb(scheme.missing);
      case 'within tolerance':
        return between(scheme.within, 1 - (WITHIN_MAX - level) / span);
      case 'diverged':
        return between(scheme.diverged, (level - DIVERGED_MIN) / span);
    }
  });
}

/** As the pixels of an ImageData, on a little-endian machine (all that run a browser). */
export function paletteOf(colours: readonly Rgb[]): Uint32Array {
  return Uint32Array.from(colours, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
}

export function css(colour: Rgb): string {
  return `rgb(${colour.join(' ')})`;
}
