// The names of one or two runs, each with the line by which charts draw it.
import { Name } from './parts';

function RunKey({ run, side, longest }: { run: string; side: 'a' | 'b'; longest: number }) {
  return (
    <span class={`key ${side}`}>
      <Name name={run} longest={longest} />
    </span>
  );
}

/** "A against B"; of one run, its name. */
export function RunPair({ a, b = '', longest = 80 }: { a: string; b?: string; longest?: number }) {
  return (
    <>
      <RunKey run={a} side="a" longest={longest} />
      {b === '' ? null : (
        <>
          {' '}
          <span class="soft">against</span> <RunKey run={b} side="b" longest={longest} />
        </>
      )}
    </>
  );
}
