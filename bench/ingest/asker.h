// Questions to the real Query service, with a check of the answer.
#ifndef STATCOLLECT_BENCH_INGEST_ASKER_H_
#define STATCOLLECT_BENCH_INGEST_ASKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/records.h"
#include "common/status.h"
#include "statcollect/v1/query.grpc.pb.h"

namespace statcollect::bench {

struct Answer {
  std::uint64_t records = 0;  // that the answer is about
};

enum class Expect { kIdentical, kAgree, kDiverged };  // kAgree: identical, or up to rounding

// Any thread.
class Asker {
 public:
  explicit Asker(const std::string& collector);

  // All steps and ranks.
  Result<Answer> Series(const std::string& run, const TensorDef& activation) const;
  // `steps` as in DiffRequest; `noise`: measured from twins. kInternal: the verdict is another than
  // expected.
  Result<Answer> Diff(const std::string& a, const std::string& b, const std::string& steps,
                      Expect expected, bool noise = false) const;
  // Records of the run in the store, of all kinds.
  Result<Answer> Stored(const std::string& run) const;

 private:
  std::unique_ptr<v1::Query::Stub> stub_;
};

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_ASKER_H_
