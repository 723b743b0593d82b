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
  const lost = Object.entries(status.dropped_by_cause);
  const retention = status.retention;
  const alarms = Object.entries(status.alarms?.raised ?? {}).filter(([, raised]) => raised > 0);
  return (
    <>
      <section class={`verdict ${ready ? 'good' : 'warn'}`} aria-label="State">
        <p class="badge">{ready ? 'ready' : 'not ready'}</p>
        <h1 class="sentence">{ready ? 'The collector stores records and answers queries.' : `The collector is ${shown(status.state, 500)}.`}</h1>
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
          <h2>Lost records</h2>
          {lost.length === 0 ? <p class="note">No agent has reported any.</p> : null}
          <ul>
            {lost.map(([cause, n]) => (
              <li key={cause}>
                {words(shown(cause))}: {count(n)}
              </li>
            ))}
          </ul>
          <h2>Alarms</h2>
          {alarms.length === 0 ? <p class="note">None since the start.</p> : null}
          <ul>
            {alarms.map(([rule, n]) => (
              <li key={rule}>
                {words(rule)}: {count(n)}
                {status.alarms?.active[rule] ? `, ${count(status.alarms.active[rule])} still active` : ''}
              </li>
            ))}
          </ul>
          <h2>Retention</h2>
          <p class="note">
            {!retention || (retention.age_seconds_max === 0 && retention.disk_bytes_max === 0)
              ? 'Runs stay until someone removes them.'
              : [
                  retention.age_seconds_max > 0 ? `Runs are removed after ${duration(retention.age_seconds_max)}` : '',
                  retention.disk_bytes_max > 0 ? `the oldest are removed when the store exceeds ${bytes(retention.disk_bytes_max)}` : '',
                ]
                  .filter(Boolean)
                  .join('; ')}
            {retention?.note ? ` ${shown(retention.note, 500)}` : ''}
          </p>
        </div>
      </div>
      <Commands asked={[{ statctl: command('statctl', 'status'), url: '/api/v1/status' }]} />
    </>
  );
}
