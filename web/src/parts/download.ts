// Files of what is shown.

export function save(name: string, blob: Blob) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A file's name from those of runs and tensors, which may hold anything. */
export function fileName(parts: readonly string[], ending: string): string {
  const name = parts.map((part) => part.replace(/[^A-Za-z0-9._-]+/g, '_').slice(0, 60)).filter(Boolean).join('-');
  return `${name || 'statcollect'}.${ending}`;
}

type Cell = string | number | null;

/** RFC 4180. What a spreadsheet would take for a formula is set off with an apostrophe. */
export function csvText(rows: readonly (readonly Cell[])[]): string {
  const text = (cell: Cell) => {
    if (cell === null) return '';
    if (typeof cell === 'number') return String(cell);
    const safe = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => row.map(text).join(',') + '\r\n').join('');
}

export function saveCsv(name: string, rows: readonly (readonly Cell[])[]) {
  save(name, new Blob([csvText(rows)], { type: 'text/csv' }));
}

/** The charts below an element as one picture, each with its title. */
export async function savePng(name: string, below: Element | null): Promise<void> {
  const charts = [...(below?.querySelectorAll('.chart') ?? [])].flatMap((chart) => {
    const canvas = chart.querySelector('canvas');
    return canvas && canvas.width > 0 ? [{ canvas, title: chart.getAttribute('aria-label') ?? '' }] : [];
  });
  const first = charts[0];
  if (!first) return;
  const scale = first.canvas.width / Math.max(1, first.canvas.clientWidth);
  const head = 24 * scale;
  const picture = document.createElement('canvas');
  picture.width = Math.max(...charts.map(({ canvas }) => canvas.width));
  picture.height = charts.reduce((sum, { canvas }) => sum + canvas.height + head, 0);
  const context = picture.getContext('2d');
  if (!context) return;
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue('--page');
  context.fillRect(0, 0, picture.width, picture.height);
  context.fillStyle = style.getPropertyValue('--ink');
  context.font = `${13 * scale}px system-ui, sans-serif`;
  let y = 0;
  for (const { canvas, title } of charts) {
    context.fillText(title, 8 * scale, y + 17 * scale);
    context.drawImage(canvas, 0, y + head);
    y += canvas.height + head;
  }
  const blob = await new Promise<Blob | null>((done) => picture.toBlob(done, 'image/png'));
  if (blob) save(name, blob);
}
