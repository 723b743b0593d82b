import { expect, test } from 'vitest';
import { joined, tickTexts } from '../src/parts/lines';
import { hrefOf, parseRoute } from '../src/route';
import { ago, bytes, command, duration, quoted, short, shown } from '../src/text';
import { isLoss, lossName, meanBySteps } from '../src/views/losses';
import { sorted, withoutTwins } from '../src/views/runs';
import type { RunSummary, ScalarPoint } from '../src/api/types';

test('invisible and turning characters are shown', () => {
  expect(shown('a\u202eb\u0000c')).toBe('a\\u202eb\\u0000c');
  expect(shown('<script>')).toBe('<script>'); // text, never markup
  expect(shown('x'.repeat(1024), 80)).toHaveLength(80 - 1 + (80 % 2 === 0 ? 0 : 1));
});

test('commands are safe to paste', () => {
  expect(quoted('base-2')).toBe('base-2');
  expect(quoted("it's; rm -rf /")).toBe("'it'\\''s; rm -rf /'");
  expect(quoted('a\nrm x')).toBe("'arm x'");
  expect(quoted('')).toBe("''");
  expect(command('statctl', 'diff', '$(x)', '`y`')).toBe("statctl diff '$(x)' '`y`'");
});

test('numbers', () => {
  expect([0, 0.25, 1234.5678, 1.1e-7, 2.5e9, NaN, Infinity, -Infinity, null].map((value) => short(value))).toEqual(['0', '0.25', '1230', '1.1e-7', '2.5e9', 'NaN', '∞', '−∞', '–']);
  expect(tickTexts([1.001, 1.002])).toEqual(['1.001', '1.002']);
  expect(tickTexts([1, null, 2])).toEqual(['1', '', '2']);
  expect([59, 61, 3700, 90000].map(duration)).toEqual(['59 s', '1 min', '1 h 1 min', '1 d 1 h']);
  expect(bytes(3 * 1024 * 1024)).toBe('3.0 MiB');
  expect(ago(0)).toBe('–');
});

test('every view is a URL, and nothing else is', () => {
  const route = parseRoute('?view=compare&a=a%26b&b=%3Cscript%3E&rank=3&tensor=x,y&step=7');
  expect(route).toMatchObject({ view: 'compare', a: 'a&b', b: '<script>', rank: '3', tensor: 'x,y', step: '7' });
  expect(parseRoute(hrefOf(route).slice(1))).toEqual(route);
  expect(parseRoute('?view=evil&rank=1e9x&step=-1')).toMatchObject({ view: 'runs', rank: '', step: '' });
  expect(hrefOf(parseRoute(''))).toBe('/');
});

function scalar(step: number, rank: number, name: string, value: ScalarPoint['value']): ScalarPoint {
  return { run: 'r', rank, step, micro_batch: 0, name, value, ranks: [] };
}

// The same names as in tests/server/query/losses_test.cc.
test('losses are told from other scalars', () => {
  for (const name of ['loss', 'train/loss', 'eval_Loss', 'valloss', 'lm loss', 'train_loss_step', 'loss/gen', 'Loss_total', 'losses/aux', 'loss-G', 'mtp_1 loss'])
    expect(isLoss(name), name).toBe(true);
  for (const name of ['', 'lr', 'glossary', 'lossless', 'loss_scale', 'loss-scale', 'amp/loss_scale', 'loss_weight', 'time/loss_ms', 'aux_loss_coeff', 'grad_norm'])
    expect(isLoss(name), name).toBe(false);
  const names = (...all: string[]) => lossName(all.map((name) => scalar(0, 0, name, 1)));
  expect(names('aux_loss', 'loss', 'train_loss_step')).toBe('loss');
  expect(names('loss_gen', 'train/loss')).toBe('train/loss');
  expect(names('train_loss_step', 'train_loss_epoch')).toBe('train_loss_epoch');
});

test('the loss is the mean over the ranks, or of one', () => {
  const records = [scalar(1, 0, 'loss', 2), scalar(1, 1, 'loss', 4), scalar(0, 0, 'loss', 'NaN'), scalar(0, 0, 'grad_norm', 9)];
  expect(lossName(records)).toBe('loss');
  expect(lossName([scalar(0, 0, 'eval/Loss', 1)])).toBe('eval/Loss');
  expect(lossName([scalar(0, 0, 'grad_norm', 1)])).toBeNull();
  expect(meanBySteps(records, 'loss', '')).toEqual([[0, NaN], [1, 3]]);
  expect(meanBySteps(records, 'loss', '1')).toEqual([[1, 4]]);
});

test('lines share one axis, with gaps where a run has nothing', () => {
  const data = joined([
    { label: 'A', run: 'a', points: [[0, 1], [2, 3]] },
    { label: 'B', run: 'b', points: [[1, 5], [2, Infinity]] },
  ]);
  expect(data).toEqual([[0, 1, 2], [1, undefined, 3], [undefined, 5, null]]);
});

test('twins are counted with their run, and listed if it is gone', () => {
  const run = (name: string, twin_of: string): RunSummary => ({
    run: name, state: 'finished', attempts: 1, world_size: 1, ranks: 1, ranks_expected: 1, records: 1, steps: 1, first_step: 0, last_step: 0, start_unix_nanos: 1, end_unix_nanos: 1, dropped: 0, twin_of,
  }); // prettier-ignore
  const found = withoutTwins([run('base', ''), run('base.twin-1-1', 'base'), run('base.twin-1-2', 'base'), run('gone.twin-1-1', 'gone')]);
  expect(found.runs.map((one) => one.run)).toEqual(['base', 'gone.twin-1-1']);
  expect([...found.twins]).toEqual([['base', 2]]);
});

test('runs are filtered by every word, newest first unless asked', () => {
  const run = (name: string, state: string, start: number): RunSummary => ({
    run: name, state, attempts: 1, world_size: 1, ranks: 1, ranks_expected: 1, records: 1, steps: 1, first_step: 0, last_step: 0, start_unix_nanos: start, end_unix_nanos: start, dropped: 0, twin_of: '',
  }); // prettier-ignore
  const runs = [run('base', 'finished', 1), run('ort', 'running', 2), run('base-2', 'running', 3)];
  expect(sorted(runs, '', '').map((one) => one.run)).toEqual(['base-2', 'ort', 'base']);
  expect(sorted(runs, 'BASE running', '').map((one) => one.run)).toEqual(['base-2']);
  expect(sorted(runs, '', 'run').map((one) => one.run)).toEqual(['base', 'base-2', 'ort']);
  expect(sorted(runs, '', 'nonsense')).toHaveLength(3);
});
