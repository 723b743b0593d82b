// Names, numbers and commands as people read them.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/** A name from outside, with everything that is invisible or turns the text around made visible. */
export function shown(name: string, longest = 200): string {
  const visible = name.replace(HIDDEN, (c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`);
  if (visible.length <= longest) return visible;
  const half = Math.floor((longest - 1) / 2);
  return `${visible.slice(0, half)}…${visible.slice(visible.length - half)}`;
}

/** One word for a POSIX shell. Control characters are left out: a paste must never press Enter. */
export function quoted(word: string): string {
  const printable = word.replace(/[\u0000-\u001f\u007f]/g, '');
  if (/^[A-Za-z0-9._/@:=,+-]+$/.test(printable)) return printable;
  return `'${printable.replaceAll("'", "'\\''")}'`;
}

export function command(...words: string[]): string {
  return words.map(quoted).join(' ');
}

/** A sentence of the collector, as it begins on a page. */
export function sentenceOf(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function count(value: number): string {
  return value.toLocaleString('en-US');
}

/** "0.25", "1.1e-2": for distances and statistics. */
export function short(value: number | null, digits = 3): string {
  if (value === null) return '–';
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  const size = Math.abs(value);
  if (value === 0 || (size >= 0.01 && size < 100000)) return String(Number(value.toPrecision(digits)));
  return value.toExponential(Math.max(0, digits - 2)).replace(/\.?0*e\+?/, 'e');
}

export function duration(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds / 3600) % 24)} h`;
}

export function ago(unixNanos: number, now = Date.now()): string {
  if (unixNanos === 0) return '–';
  const seconds = now / 1000 - unixNanos / 1e9;
  return seconds <= 1 ? 'now' : `${duration(seconds)} ago`;
}

export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

/** "grad output" for grad_output. */
export function words(name: string | null): string {
  return (name ?? '').replaceAll('_', ' ');
}
