// The interface of an export: receives a run's records in order and writes them in one format.
#ifndef STATCOLLECT_CLIENT_EXPORTS_EXPORTER_H_
#define STATCOLLECT_CLIENT_EXPORTS_EXPORTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/exports/output.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::client {

// One tensor of one step. Everything it points to is valid only during the call.
struct Observation {
  std::uint32_t rank = 0;
  // Not empty: of the whole tensor, put together from the parts of these ranks; rank is 0.
  std::span<const std::uint32_t> ranks;
  std::uint64_t step = 0;
  std::uint32_t order = 0;  // position in the step's order of execution
  const TensorDef* def = nullptr;
  const Layout* layout = nullptr;
  const TensorStats* stats = nullptr;
  std::span<const double> sketch, samples;  // empty unless requested and recorded
};

// Its numbers. Absent: moments of a tensor without a finite element, and whatever the recording
// tool did not provide.
struct Numbers {
  std::optional<std::uint64_t> numel, nan, pos_inf, neg_inf, zero, neg, pos, hash;
  std::optional<std::uint64_t> inf;  // of both signs, if they were counted together
  std::optional<double> min, max, mean, std, l1, l2;
};
Numbers NumbersOf(const Observation& observation);
// "std" or "mean std": statistics that are stored but not trusted; empty for records of statagent.
std::string UntrustedOf(const Layout& layout);
// "crc32"; empty for statagent's own hash.
std::string_view HashKindOf(const Layout& layout);

// Records arrive by step, then rank; for each rank the tensors in order of execution, then scalars,
// events, memory, densities and the step's end. Whole tensors of a step come before its ranks'
// records. Nothing exists under the final name before Finish; an exporter destroyed before that
// leaves nothing.
class Exporter {
 public:
  virtual ~Exporter() = default;
  virtual Status Write(const Observation& observation) = 0;
  virtual Status Write(std::uint32_t /*rank*/, const ScalarRecord&) { return Status::Ok(); }
  virtual Status Write(std::uint32_t /*rank*/, const EventRecord&) { return Status::Ok(); }
  virtual Status Write(std::uint32_t /*rank*/, const MemoryRecord&) { return Status::Ok(); }
  virtual Status Write(std::uint32_t /*rank*/, const DensityRecord&) { return Status::Ok(); }
  virtual Status Write(std::uint32_t /*rank*/, const StepRecord&) { return Status::Ok(); }
  virtual Status Finish() = 0;
  // Whole sentences for the user, after Finish: what the format could not hold.
  virtual std::vector<std::string> Remarks() const { return {}; }
};

// Of a folder that has one folder per rank, the one with whole tensors.
inline constexpr std::string_view kWholeFolder = "whole";

enum class ExportFormat { kCsv, kJson, kOrt, kTensorBoard, kParquet };
std::optional<ExportFormat> ParseExportFormat(std::string_view name);

struct ExportTarget {
  std::string run;
  std::string path;  // "-": standard output, csv and json only
  bool overwrite = false;
  bool sketches = false, samples = false;  // csv, json, parquet: columns for them
  bool rank_folders = false;               // ort, tensorboard: one folder per rank
  std::vector<std::string> statistics;     // tensorboard: only these; empty: the default ones
};

// kAlreadyExists, kInvalidArgument, kPermissionDenied... for the path; kNotFound and, from Finish,
// kUnimplemented where Parquet finds no Python with pyarrow.
Result<std::unique_ptr<Exporter>> MakeExporter(ExportFormat format, const ExportTarget& target);
Result<std::unique_ptr<Exporter>> MakeCsvExporter(const ExportTarget& target);
Result<std::unique_ptr<Exporter>> MakeJsonExporter(const ExportTarget& target);
// Into `out` instead of the target's path.
std::unique_ptr<Exporter> MakeJsonExporter(const ExportTarget& target, FileWriter out);
Result<std::unique_ptr<Exporter>> MakeOrtExporter(const ExportTarget& target);
Result<std::unique_ptr<Exporter>> MakeTensorBoardExporter(const ExportTarget& target);
// kInvalidArgument names the first that it does not write, and those that it does.
Status CheckTensorBoardStatistics(const std::vector<std::string>& names);
Result<std::unique_ptr<Exporter>> MakeParquetExporter(const ExportTarget& target);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_EXPORTER_H_
