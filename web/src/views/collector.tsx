// The health of the collector itself.
import { useQuery } from '../api/use_query';
import { Commands, waiting } from '../parts/parts';
import { bytes, command, count, duration, shown, words } from '../text';

export function CollectorView() {
  const query = useQuery('/api/v1/status', {}, 2000);
  const status = query.data;
  const wait = waiting(query, 'Asking the collector');
  if (wait || !status) return wait;
  const ready = status.state === 'ready';
  const facts: readonly (readonly [string, string])[] = [
    ['Waits to be stored', `${count(status.backlog_records)} records, ${bytes(status.backlog_bytes)}, the oldest for ${status.backlog_oldest_millis} ms`],
    ['Open streams', `${count(status.streams_open)} of ${count(status.streams_total)} since the start`],
    ['Stored since the start', `${count(status.records_total)} records in ${count(status.commits_total)} writes`],
    ['Refused batches', count(status.rejected_batches_total)],
    ['Runs', count(status.runs)],
    ['On disk', `${bytes(status.disk_bytes)}; ${bytes(status.disk_free_bytes)} free`],
    ['Durability', status.durability === 'fsync' ? 'survives a power failure' : 'survives the end of the process'],
    ['Data', shown(status.data_dir)],
    ['Up for', duration(status.uptime_seconds)],
    ['Version', shown(status.version)],
  ];
  const lost = Object.entries(status.dropped_by_cause);
  const retention = status.retention;
  const alarms = Object.entries(status.alarms?.raised ?? {}).filter(([, raised]) => raised > 0);
  return (
    <>
      <section class={`verdict ${ready ? 'good' : 'warn'}`} aria-label="State">
        <p class="badge">{ready ? 'ready' : 'not ready'}</p>
        <h1 class="sentence">{ready ? 'The collector takes records and answers.' : `The collector is ${shown(status.state, 500)}.`}</h1>
      </section>
      <div class="two">
        <dl class="facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        <div>
          <h2>Losses</h2>
          {lost.length === 0 ? <p class="note">No agent has reported a lost record.</p> : null}
          <ul>
            {lost.map(([cause, n]) => (
              <li key={cause}>
                {words(shown(cause))}: {count(n)}
              </li>
            ))}
          </ul>
          <h2>Alarms</h2>
          {alarms.length === 0 ? <p class="note">No alarm since the start.</p> : null}
          <ul>
            {alarms.map(([rule, n]) => (
              <li key={rule}>
                {words(rule)}: {count(n)}
                {status.alarms?.active[rule] ? `, ${count(status.alarms.active[rule])} still there` : ''}
              </li>
            ))}
          </ul>
          <h2>Retention</h2>
          <p class="note">
            {!retention || (retention.age_seconds_max === 0 && retention.disk_bytes_max === 0)
              ? 'Runs are kept until someone removes them.'
              : [
                  retention.age_seconds_max > 0 ? `runs are removed after ${duration(retention.age_seconds_max)}` : '',
                  retention.disk_bytes_max > 0 ? `the oldest go when the store exceeds ${bytes(retention.disk_bytes_max)}` : '',
                ]
                  .filter(Boolean)
                  .join('; ')}
            {retention?.note ? ` ${shown(retention.note, 500)}` : ''}
          </p>
        </div>
      </div>
      <Commands statctl={command('statctl', 'status')} url="/api/v1/status" />
    </>
  );
}
