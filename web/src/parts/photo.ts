// A picture of a part of the page: its texts, boxes and canvases where they lie, painted once more. A browser lets no page draw its own document.
import { fileName, save } from './download';

const MARGIN = 16;

const solid = (colour: string) => colour !== '' && colour !== 'transparent' && !/(,|\/)\s*0\s*\)$/.test(colour);

function drawLine(context: CanvasRenderingContext2D, width: number, colour: string, dashes: string, [x, y, toX, toY]: readonly [number, number, number, number]) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dashes === 'dashed' ? [4, 3] : []);
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
  context.setLineDash([]);
}

/** What is behind an element, and its frame. */
function paintBox(context: CanvasRenderingContext2D, element: Element, style: CSSStyleDeclaration, box: DOMRect) {
  const round = (offset: number) => {
    context.beginPath();
    context.roundRect(box.x - offset, box.y - offset, box.width + 2 * offset, box.height + 2 * offset, Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2));
  };
  if (solid(style.backgroundColor)) {
    context.fillStyle = style.backgroundColor;
    round(0);
    context.fill();
  }
  const stops = style.backgroundImage.startsWith('linear-gradient(to right') ? (style.backgroundImage.match(/rgba?\([^)]*\)/g) ?? []) : [];
  if (stops.length > 1) {
    const gradient = context.createLinearGradient(box.left, 0, box.right, 0);
    stops.forEach((colour, i) => gradient.addColorStop(i / (stops.length - 1), colour));
    context.fillStyle = gradient;
    context.fillRect(box.x, box.y, box.width, box.height);
  }
  if (element instanceof HTMLCanvasElement && element.width > 0) {
    context.imageSmoothingEnabled = !element.closest('.heat-canvas');
    context.drawImage(element, box.x, box.y, box.width, box.height);
  }
  const frame = (width: number, colour: string, offset: number) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    round(offset);
    context.stroke();
  };
  if (style.outlineStyle === 'solid') frame(parseFloat(style.outlineWidth), style.outlineColor, parseFloat(style.outlineOffset) + 1);
  else if (parseFloat(style.borderTopWidth) > 0 && parseFloat(style.borderBottomWidth) > 0 && style.borderTopStyle === 'solid') frame(parseFloat(style.borderTopWidth), style.borderTopColor, -0.5);
  const key = getComputedStyle(element, '::before'); // the line by which charts draw a run
  if (element.matches('.key:not(.origin, .bars)')) drawLine(context, parseFloat(key.borderTopWidth), key.borderTopColor, key.borderTopStyle, [box.x, box.y + box.height / 2, box.x + 16, box.y + box.height / 2]);
  if (element.matches('.heat-origin')) drawLine(context, 1, style.borderLeftColor, 'dashed', [box.x, box.y, box.x, box.bottom]);
  if (parseFloat(style.borderLeftWidth) >= 3) {
    context.fillStyle = style.borderLeftColor;
    context.fillRect(box.x, box.y, parseFloat(style.borderLeftWidth), box.height);
  }
}

/** A text node, line by line as the browser has broken it. */
function paintText(context: CanvasRenderingContext2D, node: Text, style: CSSStyleDeclaration) {
  context.fillStyle = style.color;
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.textBaseline = 'middle';
  const range = document.createRange();
  let begin = 0;
  let top: number | null = null;
  const flush = (end: number) => {
    range.setStart(node, begin);
    range.setEnd(node, end);
    const box = range.getClientRects()[0];
    const text = node.data.slice(begin, end).replace(/\s+/g, ' ');
    if (box && text.trim() !== '') context.fillText(text, box.x, box.y + box.height / 2);
    begin = end;
  };
  for (let i = 0; i < node.length; ++i) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box || box.width === 0) continue;
    if (top !== null && box.y > top + box.height / 2) flush(i);
    top = box.y;
  }
  flush(node.length);
}

function paint(context: CanvasRenderingContext2D, node: Node) {
  if (node instanceof Text) {
    if (node.parentElement) paintText(context, node, getComputedStyle(node.parentElement));
    return;
  }
  if (!(node instanceof HTMLElement) || node.matches('button:not(.fold), details, .menu, .hidden, .pair > a, .picture > .note, .heat-at, [hidden]')) return;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  if (style.display === 'none' || style.visibility === 'hidden') return;
  context.save();
  if (node.matches('.heat-stage')) {
    // Its text stands upright.
    context.translate(box.x + box.width / 2, box.y + box.height / 2);
    context.rotate(-Math.PI / 2);
    Object.assign(context, { fillStyle: style.color, font: `${style.fontSize} ${style.fontFamily}`, textAlign: 'center', textBaseline: 'middle' });
    context.fillText(node.innerText, 0, 0);
    return context.restore();
  }
  paintBox(context, node, style, box);
  if (style.overflowX === 'hidden' && box.width > 1) {
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
  }
  if (box.width > 1 || style.display === 'contents') for (const child of node.childNodes) paint(context, child);
  context.restore();
}

/** The elements below each other, as a PNG. */
export async function savePhoto(names: readonly string[], elements: readonly Element[]): Promise<void> {
  const boxes = elements.map((element) => element.getBoundingClientRect());
  if (boxes.length === 0) return;
  const scale = Math.max(1.5, globalThis.devicePixelRatio || 1);
  const width = Math.max(...boxes.map((box) => box.width));
  const height = boxes.reduce((sum, box) => sum + box.height + MARGIN, 0);
  const picture = document.createElement('canvas');
  picture.width = Math.ceil((width + 2 * MARGIN) * scale);
  picture.height = Math.ceil((height + MARGIN) * scale);
  const context = picture.getContext('2d');
  if (!context) return;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--page');
  context.fillRect(0, 0, picture.width, picture.height);
  let y = MARGIN;
  elements.forEach((element, i) => {
    const box = boxes[i]!;
    context.setTransform(scale, 0, 0, scale, (MARGIN - box.x) * scale, (y - box.y) * scale);
    paint(context, element);
    y += box.height + MARGIN;
  });
  const blob = await new Promise<Blob | null>((done) => picture.toBlob(done, 'image/png'));
  if (blob) save(fileName(names, 'png'), blob);
}
