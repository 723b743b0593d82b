// Reads everything that is recorded: RunReader's records, and those of all other kinds, as they are
// read or as lists.
//
// Who: queries, and transfer, which copies whole runs. Thread-safe, as RunReader.
#ifndef STATCOLLECT_SERVER_STORE_RECORD_READER_H_
#define STATCOLLECT_SERVER_STORE_RECORD_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/records.h"
#include "common/status.h"
#include "server/store/attempt.h"
#include "server/store/run_reader.h"

namespace statcollect {

// Raw values of one tensor in one step, as far as they have arrived.
struct StoredCapture {
  std::uint64_t step = 0;
  std::uint32_t activation = 0;
  std::uint32_t layout = 0;
  std::uint64_t elements = 0;      // that were kept
  std::uint64_t bytes_stored = 0;  // from the first byte on, without gaps
};

// Receives what a read finds, in its order, so that a read needs no copy of all. A status that is
// not OK ends the read, which returns it. Called from the reading thread.
template <typename T>
struct Visitor {
  // A value of so many stored bytes was read; some lead to no record. Empty: of no interest.
  std::function<Status(std::size_t bytes)> read;
  std::function<Status(T record)> take;

  Status Read(std::size_t bytes) const { return read ? read(bytes) : Status::Ok(); }
};

// The visitor of one kind of record; borrowed for the call.
using RecordVisitor = std::variant<const Visitor<ScalarRecord>*, const Visitor<EventRecord>*,
                                   const Visitor<StepRecord>*, const Visitor<MemoryRecord>*,
                                   const Visitor<DensityRecord>*, const Visitor<ExponentRecord>*,
                                   const Visitor<TokenRecord>*, const Visitor<StoredCapture>*>;

// The most that a read returns as a list: stored bytes of records, bytes in memory of points and
// steps.
inline constexpr std::uint64_t kListBytesMax = std::uint64_t{1} << 30;

class RecordReader : public RunReader {
 public:
  // One entry of Ranks; none: the rank has no state.
  virtual Result<std::optional<RankMeta>> Rank(AttemptId attempt, std::uint32_t rank) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto ranks, Ranks(attempt));
    const auto found = ranks.find(rank);
    return found == ranks.end() ? std::optional<RankMeta>() : std::move(found->second);
  }
  // A small document of a run, by name; see DocumentStore.
  virtual Result<std::optional<std::string>> Document(const std::string& run,
                                                      const std::string& name) = 0;

  // Records of a rank by step, those with an activation by step and activation. Captures come
  // without values.
  template <typename T>
  Status Visit(AttemptId attempt, std::uint32_t rank, StepBounds steps, const Visitor<T>& visitor) {
    return VisitRecords(attempt, rank, steps, &visitor);
  }
  // What engines implement.
  virtual Status VisitRecords(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                              RecordVisitor visitor) = 0;
  // See ActivationSeries and StatSteps.
  virtual Status VisitSeries(AttemptId attempt, std::uint32_t rank, std::uint32_t activation,
                             StepBounds steps, const Visitor<StatPoint>& visitor) = 0;
  virtual Status VisitStatSteps(AttemptId attempt, std::uint32_t rank, StepBounds steps,
                                const Visitor<std::uint64_t>& visitor) = 0;

  // The same as lists. kResourceExhausted: more than kListBytesMax.
  Result<std::vector<ScalarRecord>> Scalars(AttemptId attempt, std::uint32_t rank,
                                            StepBounds steps) final {
    return ListOf<ScalarRecord>("scalars", attempt, rank, steps);
  }
  Result<std::vector<EventRecord>> Events(AttemptId attempt, std::uint32_t rank) final {
    return ListOf<EventRecord>("events", attempt, rank, {});
  }
  Result<std::vector<StepRecord>> StepEnds(AttemptId attempt, std::uint32_t rank,
                                           StepBounds steps) final {
    return ListOf<StepRecord>("step ends", attempt, rank, steps);
  }
  Result<std::vector<MemoryRecord>> Memory(AttemptId attempt, std::uint32_t rank,
                                           StepBounds steps) {
    return ListOf<MemoryRecord>("memory", attempt, rank, steps);
  }
  Result<std::vector<DensityRecord>> Densities(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) {
    return ListOf<DensityRecord>("densities", attempt, rank, steps);
  }
  Result<std::vector<ExponentRecord>> Exponents(AttemptId attempt, std::uint32_t rank,
                                                StepBounds steps) {
    return ListOf<ExponentRecord>("exponents", attempt, rank, steps);
  }
  Result<std::vector<StoredCapture>> Captures(AttemptId attempt, std::uint32_t rank,
                                              StepBounds steps) {
    return ListOf<StoredCapture>("captures", attempt, rank, steps);
  }
  Result<std::vector<StatPoint>> ActivationSeries(AttemptId attempt, std::uint32_t rank,
                                                  std::uint32_t activation,
                                                  StepBounds steps) final {
    return Collect<StatPoint>("points of a series", rank, [&](const Visitor<StatPoint>& visitor) {
      return VisitSeries(attempt, rank, activation, steps, visitor);
    });
  }
  Result<std::vector<std::uint64_t>> StatSteps(AttemptId attempt, std::uint32_t rank,
                                               StepBounds steps) final {
    return Collect<std::uint64_t>("steps", rank, [&](const Visitor<std::uint64_t>& visitor) {
      return VisitStatSteps(attempt, rank, steps, visitor);
    });
  }
  Result<std::optional<std::uint64_t>> FirstStatStep(AttemptId attempt, std::uint32_t rank,
                                                     StepBounds steps) final {
    std::optional<std::uint64_t> first;
    Visitor<std::uint64_t> visitor;
    visitor.take = [&](std::uint64_t step) {
      first = step;
      return Status(Code::kAborted, "found");
    };
    Status read = VisitStatSteps(attempt, rank, steps, visitor);
    if (!first && !read.ok()) return read;
    return first;
  }
  // The chunk of a capture's values that begins at this byte. kNotFound: there is none.
  virtual Result<std::string> CaptureChunkAt(AttemptId attempt, std::uint32_t rank,
                                             std::uint64_t step, std::uint32_t activation,
                                             std::uint32_t offset) = 0;

 private:
  template <typename T>
  Result<std::vector<T>> ListOf(const char* what, AttemptId attempt, std::uint32_t rank,
                                StepBounds steps) {
    return Collect<T>(what, rank, [&](const Visitor<T>& list) {
      std::uint64_t bytes = 0;
      Visitor<T> counted;
      counted.read = [&](std::size_t more) {
        bytes += more;
        return bytes <= kListBytesMax ? Status::Ok() : ListTooLong(what, rank);
      };
      counted.take = list.take;
      return Visit(attempt, rank, steps, counted);
    });
  }
  template <typename T, typename Read>
  Result<std::vector<T>> Collect(const char* what, std::uint32_t rank, const Read& read) {
    std::vector<T> list;
    Visitor<T> visitor;
    visitor.take = [&](T record) {
      if (list.size() >= kListBytesMax / sizeof(T)) return ListTooLong(what, rank);
      list.push_back(std::move(record));
      return Status::Ok();
    };
    STATCOLLECT_RETURN_IF_ERROR(read(visitor));
    return list;
  }
  static Status ListTooLong(const std::string& what, std::uint32_t rank) {
    return {Code::kResourceExhausted,
            "list " + what + " of rank " + std::to_string(rank) + ": found more than " +
                std::to_string(kListBytesMax >> 20) +
                " MiB of them; expected no more at once; narrow the question with --steps"};
  }
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_RECORD_READER_H_
