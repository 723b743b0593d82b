// The health of the collector itself.
import type { CollectorStatus } from '../api/types';
import { useQuery } from '../api/use_query';
import { Commands, waiting } from '../parts/parts';
import { bytes, command, count, duration, shown, words } from '../text';

function factsOf(status: CollectorStatus): readonly (readonly [string, string])[] {
  return [
    ['Waiting to be stored', status.backlog_records === 0 ? 'nothing' : `${count(status.backlog_records)} records, ${bytes(status.backlog_bytes)}, the oldest for ${status.backlog_oldest_millis} ms`],
    ['Streams', `${count(status.streams_open)} open, ${count(status.streams_total)} since the start`],
    ['Stored since the start', `${count(status.records_total)} records in ${count(status.commits_total)} writes`],
    ['Rejected batches', count(status.rejected_batches_total)],
    ['Runs', count(status.runs)],
    ['Disk', `${bytes(status.disk_bytes)} used, ${status.disk_free_unknown ? 'free space unknown' : `${bytes(status.disk_free_bytes)} free`}`],
    ['Stored records survive', status.durability === 'fsync' ? 'a power failure' : 'the end of the process, but not a power failure'],
    ['Data folder', shown(status.data_dir)],
    ['Uptime', duration(status.uptime_seconds)],
    ['Version', shown(status.version)],
  ];
}

/** When runs are removed by themselves. */
function retentionText({ retention }: CollectorStatus): string {
  const { age_seconds_max: age = 0, disk_bytes_max: disk = 0, note = '' } = retention ?? {};
  const rules = [age > 0 ? `Runs are removed after ${duration(age)}` : '', disk > 0 ? `the oldest are removed when the store exceeds ${bytes(disk)}` : ''].filter(Boolean);
  const text = age === 0 && disk === 0 ? 'Runs stay until someone removes them.' : rules.join('; ');
  return note ? `${text} ${shown(note, 500)}` : text;
}

function Tally({ texts, none }: { texts: readonly string[]; none: string }) {
  if (texts.length === 0) return <p class="note">{none}</p>;
  return (
    <ul>
      {texts.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}

export function CollectorView() {
  const query = useQuery('/api/v1/status', {}, 2000);
  const status = query.data;
  const wait = waiting(query, 'Asking the collector');
  if (wait || !status) return wait;
  const ready = status.state === 'ready';
  const lost = Object.entries(status.dropped_by_cause);
  const active = status.alarms?.active ?? {};
  const alarms = Object.entries(status.alarms?.raised ?? {}).filter(([, raised]) => raised > 0);
  return (
    <>
      <section class={`verdict ${ready ? 'good' : 'warn'}`} aria-label="State">
        <p class="badge">{ready ? 'ready' : 'not ready'}</p>
        <h1 class="sentence">{ready ? 'The collector stores records and answers queries.' : `The collector is ${shown(status.state, 500)}.`}</h1>
      </section>
      <div class="two">
        <dl class="facts">
          {factsOf(status).map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        <div>
          <h2>Lost records</h2>
          <Tally texts={lost.map(([cause, n]) => `${words(shown(cause))}: ${count(n)}`)} none="No agent has reported any." />
          <h2>Alarms</h2>
          <Tally texts={alarms.map(([rule, n]) => `${words(rule)}: ${count(n)}${active[rule] ? `, ${count(active[rule])} still active` : ''}`)} none="None since the start." />
          <h2>Retention</h2>
          <p class="note">
            {retentionText(status)}
          </p>
        </div>
      </div>
      <Commands asked={[{ statctl: command('statctl', 'status'), url: '/api/v1/status' }]} />
    </>
  );
}
