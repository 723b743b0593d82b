// A collector without a store: takes the stream's messages as bytes and acknowledges each batch at
// once. The limit that gRPC itself sets.
#ifndef STATCOLLECT_BENCH_INGEST_ACKNOWLEDGER_H_
#define STATCOLLECT_BENCH_INGEST_ACKNOWLEDGER_H_

namespace statcollect::bench {

// Serves on a free port of the loopback, prints a line with "grpc HOST:PORT", returns after
// SIGTERM. The exit code.
int ServeAcknowledger();

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_ACKNOWLEDGER_H_
