// Memory over the phases of the steps, what raised its peak, and how much of the inputs is padding.
import { useMemo } from 'preact/hooks';
import { urlOf } from '../api/client';
import { useQuery } from '../api/use_query';
import { Chart } from '../parts/chart';
import { Choice, Commands, Empty, Link, Name, NoRun, waiting } from '../parts/parts';
import { RunHead } from '../parts/run_head';
import { StackChart } from '../parts/stack';
import { go, type Route } from '../route';
import { bytes, command, count, shown, words } from '../text';
import { defaultSteps, densities, peakOf, peaksByModule, percent, PHASES, stackOf, usedBytes, type InputDensity, type ModulePeak, type Stack } from './memory_model';

const LIVE_MS = 15000;
const STEPS_SHOWN = 1000;
const MODULE_STEPS = 50; // modules have a row for each pass
const MODULES_SHOWN = 200;
const INPUTS_CHARTED = 12;
const TABLE_MAX = 1000;

export function MemoryView({ route }: { route: Route }) {
  const run = route.a;
  const runs = useQuery('/api/v1/runs', run ? {} : null, LIVE_MS);
  const mine = runs.data?.runs.find((one) => one.run === run);
  const detail = useQuery('/api/v1/show', run && mine ? { run } : null);
  const ranks = useMemo(() => [...new Set((detail.data?.attempts ?? []).flatMap((attempt) => attempt.ranks.map((rank) => rank.rank)))].sort((x, y) => x - y), [detail.data]);
  const rank = route.rank === '' ? ranks[0] : Number(route.rank);
  const steps = route.steps || defaultSteps(mine?.first_step ?? null, mine?.last_step ?? null, STEPS_SHOWN);
  const moduleSteps = route.steps || defaultSteps(mine?.first_step ?? null, mine?.last_step ?? null, MODULE_STEPS);
  const of = mine && rank !== undefined ? { run, ranks: [rank], steps } : null;
  const version = mine ? `${mine.records}/${mine.state}` : '';
  const phases = useQuery('/api/v1/memory', of, 0, version);
  const modules = useQuery('/api/v1/memory', of && { ...of, steps: moduleSteps, modules: true }, 0, version);
  const density = useQuery('/api/v1/density', of, 0, version);
  const devices = useMemo(() => [...new Set((phases.data?.records ?? []).map((row) => row.device))], [phases.data]);
  const device = devices.includes(route.only) ? route.only : (devices.find((one) => one !== 'cpu') ?? devices[0] ?? '');
  const phase = PHASES.find((one) => one === route.stage) ?? '';
  const stack = useMemo(() => stackOf(phases.data?.records ?? [], device, phase), [phases.data, device, phase]);
  const peaks = useMemo(() => peaksByModule((modules.data?.records ?? []).filter((row) => row.device === device)), [modules.data, device]);
  const inputs = useMemo(() => densities(density.data?.records ?? []), [density.data]);
  if (run !== '' && runs.data && !mine) return <NoRun run={run} removed={false} />;
  if (run === '') {
    return (
      <Empty title="Pick a run">
        <p>
          Pick one in the <Link to={{ view: 'runs' }}>list of runs</Link>.
        </p>
      </Empty>
    );
  }
  const wait = waiting(runs, 'Reading the run') ?? waiting(detail, 'Reading the run') ?? (of ? waiting(phases, 'Reading the memory') : null);
  const one = (what: 'memory' | 'density') => ({
    statctl: command('statctl', what, run, ...(rank === undefined ? [] : ['--rank', String(rank)]), ...(steps ? ['--step', steps] : [])),
    url: urlOf(`/api/v1/${what}`, { run, ...(rank === undefined ? {} : { ranks: [rank] }), steps }),
    what: `${what}: `,
  });
  const rankOptions = (rank === undefined || ranks.includes(rank) ? ranks : [rank, ...ranks]).map((one) => [String(one), `rank ${one}`] as const);
  return (
    <>
      <RunHead route={{ ...route, b: '' }} state={mine?.state ?? ''} />
      <div class="bar">
        <Choice label="Rank" value={String(rank ?? '')} options={rankOptions} onChange={(next) => go({ ...route, rank: next })} />
        {devices.length > 1 ? <Choice label="Device" value={device} options={devices.map((one) => [one, one] as const)} onChange={(next) => go({ ...route, only: next })} /> : null}
        <Choice label="Phase" value={phase} options={[['', 'all phases'] as const, ...PHASES.map((one) => [one, words(one)] as const)]} onChange={(next) => go({ ...route, stage: next })} />
      </div>
      {wait ?? (
        <>
          <Phases stack={stack} />
          {steps && !route.steps ? (
            <p class="note">
              Only the last {count(STEPS_SHOWN)} steps. <Link to={{ ...route, steps: `${mine?.first_step ?? 0}-${mine?.last_step ?? 0}` }}>Show all</Link>
            </p>
          ) : null}
          {modules.error ? <p class="note">Modules: {shown(modules.error.message, 500)}</p> : <Modules run={route.a} peaks={peaks} steps={moduleSteps} given={route.steps !== ''} host={stack.of === 'host'} />}
          {density.error ? <p class="note">Padding: {shown(density.error.message, 500)}</p> : <Density inputs={inputs} loading={density.loading} />}
        </>
      )}
      <Commands asked={[one('memory'), one('density')]} />
    </>
  );
}

function Phases({ stack }: { stack: Stack }) {
  const peak = peakOf(stack.rows);
  if (!peak) {
    return (
      <p class="note">
        No memory was recorded here. <code>statagent.watch(model, memory=True)</code>, the default, records it at each phase of a step.
      </p>
    );
  }
  const at = (index: number) => `step ${stack.rows[index]?.step ?? ''}, ${words(stack.rows[index]?.phase ?? '')}`;
  const total = peak.device_total;
  return (
    <section aria-label="Memory by phase">
      <h2>
        Peak: {bytes(usedBytes(peak))} {stack.of === 'device' ? `allocated on ${shown(stack.device, 40)}` : 'of resident memory'}
      </h2>
      <p class="lead">
        At step {peak.step}, {words(peak.phase)}.{stack.of === 'device' && total ? ` The device has ${bytes(total)}.` : stack.of === 'host' && peak.host_total ? ` The machine has ${bytes(peak.host_total)}.` : ''}
        {stack.of === 'host' ? ' Without a device there is no allocator to ask, so this is the memory of the whole process.' : ''}
      </p>
      <StackChart label="Memory over the steps" xs={stack.xs} layers={stack.layers} height={260} gutter={72} atText={at} />
      <details class="behind">
        <summary>The same as a table</summary>
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Memory by step and phase">
          <table class="rows">
            <thead>
              <tr>
                <th scope="col" class="number">
                  Step
                </th>
                <th scope="col">Phase</th>
                <th scope="col" class="number">
                  In use
                </th>
                {stack.layers.map((layer) => (
                  <th key={layer.key} scope="col" class="number">
                    {layer.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {stack.rows.slice(-TABLE_MAX).map((row, i, rows) => (
                <tr key={i}>
                  <th scope="row" class="number">
                    {row.step}
                  </th>
                  <td>{words(row.phase)}</td>
                  <td class="number">{bytes(usedBytes(row))}</td>
                  {stack.layers.map((layer) => (
                    <td key={layer.key} class="number">
                      {bytes(layer.values[stack.rows.length - rows.length + i] ?? 0)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {stack.rows.length > TABLE_MAX ? <p class="note">Only the last {count(TABLE_MAX)} of {count(stack.rows.length)}.</p> : null}
      </details>
    </section>
  );
}

function Modules({ run, peaks, steps, given, host }: { run: string; peaks: readonly ModulePeak[]; steps: string; given: boolean; host: boolean }) {
  if (peaks.length === 0) {
    return (
      <section aria-label="Peak by module">
        <h2>Peak by module</h2>
        <p class="note">
          Not recorded. <code>statagent.watch(model, memory="modules")</code> records what each module's forward pass allocates.
        </p>
      </section>
    );
  }
  const most = Math.max(1, peaks[0]?.peak ?? 0);
  return (
    <section aria-label="Peak by module">
      <h2>Peak by module</h2>
      <p class="note">
        The largest rise of the peak during the forward pass of each module, including the modules in it{steps && !given ? `, in steps ${steps}` : ''}.{host ? ' Resident memory of the process measures this only roughly.' : ''}
      </p>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="Modules by peak">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">Module</th>
              <th scope="col" class="number">
                Rise of the peak
              </th>
              <th scope="col">
                <span class="hidden">As a bar</span>
              </th>
              <th scope="col" class="number">
                Still allocated
              </th>
              <th scope="col" class="number">
                Step
              </th>
            </tr>
          </thead>
          <tbody>
            {peaks.slice(0, MODULES_SHOWN).map((one) => (
              <tr key={one.module}>
                <th scope="row">
                  <Name name={one.module} />
                </th>
                <td class="number">{bytes(one.peak)}</td>
                <td class="meter" aria-hidden="true">
                  <i style={{ width: `${(100 * one.peak) / most}%` }} />
                </td>
                <td class="number">{one.allocated === null ? '–' : one.allocated < 0 ? `−${bytes(-one.allocated)}` : bytes(one.allocated)}</td>
                <td class="number">{one.step}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {peaks.length > MODULES_SHOWN ? <p class="note">Only the first {MODULES_SHOWN} of {count(peaks.length)}; <code>{command('statctl', 'show', run, '--memory', '--modules', '--all')}</code> lists all.</p> : null}
    </section>
  );
}


function Density({ inputs, loading }: { inputs: readonly InputDensity[]; loading: boolean }) {
  if (inputs.length === 0) {
    return loading ? null : (
      <section aria-label="Padding">
        <h2>Padding</h2>
        <p class="note">
          Not recorded. <code>statagent.watch(model, density=True)</code> with <code>log_batch</code> records how much of each input is padding.
        </p>
      </section>
    );
  }
  const label = (one: InputDensity) => `${shown(one.input, 60)} (${one.type})`;
  return (
    <section aria-label="Padding">
      <h2>Padding</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Density of the inputs">
        <table class="rows wrap">
          <thead>
            <tr>
              <th scope="col">Input</th>
              <th scope="col" class="number about">
                Padding index
              </th>
              <th scope="col" class="number">
                Not padding
              </th>
              <th scope="col" class="number">
                Most padding in a step
              </th>
            </tr>
          </thead>
          <tbody>
            {inputs.map((one) => (
              <tr key={label(one) + one.padIndex}>
                <th scope="row">
                  <bdi class="name">{label(one)}</bdi>
                </th>
                <td class="number about">{one.padIndex}</td>
                <td class="number" title={`${count(one.valid)} of ${count(one.total)} elements`}>
                  {one.total > 0 ? percent(one.valid / one.total) : '–'}
                </td>
                <td class="number">
                  {one.least ? (one.least.share === 1 ? 'none' : `step ${one.least.step}: ${percent(1 - one.least.share)}`) : '–'}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="grid after">
        {inputs.slice(0, INPUTS_CHARTED).map((one) => (
          <Chart key={label(one) + one.padIndex} label={`Share of ${label(one)} that is not padding`} lines={[{ label: '', run: 'a', points: one.points }]} height={150} gutter={64} span={[0, 1]} stepText={(x) => (Number.isInteger(x) ? `${x}` : '')} />
        ))}
      </div>
    </section>
  );
}
