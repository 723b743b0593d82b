// The statistics of a tensor as charts draw them: of many steps, the smallest and the largest value of each span.
import { numberOf } from '../api/client';
import type { Curves, Parameters } from '../api/types';
import type { Line } from '../parts/lines';
import type { Route } from '../route';
import type { Stat } from './stats';

type Asked = Parameters<'/api/v1/curves'>;

/** The tensor of a view in one of its runs, whose name and place in the other may be different. */
export function sideOf(route: Route, side: 'a' | 'b'): Pick<Route, 'tensor' | 'place'> & { run: string } {
  const other = side === 'b';
  return { run: other ? route.b : route.a, tensor: (other && route.tensor_b) || route.tensor, place: (other && route.place_b) || route.place };
}

/** What the view of a tensor asks of a run. */
export function curvesOf(route: Route, side: 'a' | 'b'): Asked {
  const { run, tensor, place } = sideOf(route, side);
  return {
    run,
    activation: tensor,
    ...(route.kind ? { kind: route.kind as NonNullable<Asked['kind']> } : {}),
    ...(route.path ? { output_path: route.path } : {}),
    ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }),
    ...(route.mode ? { mode: route.mode } : {}),
    ...(place ? { place } : {}),
  };
}

export function pointsOf(curves: Curves | null, stat: Stat): Line['points'] {
  const curve = curves?.curves.find((one) => one.stat === stat);
  return curve ? curve.steps.map((step, i) => [step, numberOf(curve.values[i])] as const) : [];
}
