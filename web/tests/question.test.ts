import { expect, test } from 'vitest';
import { urlOf } from '../src/api/client';
import { hrefOf, parseRoute } from '../src/route';
import { argumentsOf, optionTexts, questionOf } from '../src/views/question';

test('a link carries how the runs are compared', () => {
  const link = '?view=compare&a=base&b=ort&tolerance=0.001&ranks=0,3&steps=0-9,20&kinds=output,grad_output&noise=base2&exact=false&no_alignment=true&logical=true';
  const route = parseRoute(link);
  expect(parseRoute(hrefOf(route).slice(1))).toEqual(route);
  expect(urlOf('/api/v1/diff', questionOf(route))).toBe(
    '/api/v1/diff?run_a=base&run_b=ort&ranks=0,3&tolerance=0.001&steps=0-9%2C20&kinds=output,grad_output&noise=base2&no_alignment=true&logical=true',
  );
  expect(argumentsOf(route).join(' ')).toBe(
    'base ort --tolerance 0.001 --rank 0,3 --steps 0-9,20 --kinds output,grad_output --noise base2 --no-alignment --logical',
  );
  expect(optionTexts(route)).toEqual(['tolerance 0.001', 'ranks 0,3', 'steps 0-9,20', 'only output, grad output', 'noise of base2', 'names are not matched', 'whole models compared']);
});

test('the usual question has no options, and a chosen rank goes before those of the link', () => {
  const route = parseRoute('?view=compare&a=base&b=ort&rank=3&ranks=0,3');
  expect(questionOf(route)).toEqual({ run_a: 'base', run_b: 'ort', ranks: ['3'] });
  expect(argumentsOf(route)).toEqual(['base', 'ort', '--rank', '3']);
  expect(optionTexts(parseRoute('?view=compare&a=base&b=ort&rank=3'))).toEqual([]);
});

test('a map is a name, or rules that a command takes from a file', () => {
  const named = parseRoute('?a=x&b=y&map=hf:megatron');
  const rules = parseRoute(`?a=x&b=y&map=${encodeURIComponent("h.(\\d+) -> b.\\1\n'$(x)' -> z")}`);
  expect([argumentsOf(named), optionTexts(named)]).toEqual([['x', 'y', '--map', 'hf:megatron'], ['names mapped by hf:megatron']]);
  expect([argumentsOf(rules), optionTexts(rules)]).toEqual([['x', 'y', '--map', 'map.txt'], ['names mapped by rules']]);
  expect(questionOf(rules).map).toBe("h.(\\d+) -> b.\\1\n'$(x)' -> z");
});

test('what is no number goes to the collector, which says so', () => {
  expect(questionOf(parseRoute('?a=x&b=y&tolerance=lots')).tolerance).toBe('lots');
});
