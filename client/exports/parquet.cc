// Parquet: the lines of the JSON export, through pyarrow in a process of their own
// (parquet_writer.py, docs/decisions/0028-parquet-in-python.md).
#include <string>
#include <utility>
#include <vector>

#include "client/exports/exporter.h"
#include "client/exports/output.h"
#include "client/exports/parquet_writer.h"
#include "client/exports/python_process.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr int kNoPyarrow = 3;  // exit code of parquet_writer.py

class ParquetExporter final : public Exporter {
 public:
  ParquetExporter(const ExportTarget& target, Partial partial, std::string python,
                  PythonProcess process)
      : path_(target.path),
        partial_(std::move(partial)),
        python_(std::move(python)),
        process_(std::move(process)),
        rows_(MakeJsonExporter(target, process_.TakeInput())) {}

  Status Write(const Observation& o) override {
    const Status written = rows_->Write(o);
    return written.ok() ? written : WhyItEnded(written);
  }

  Status Finish() override {
    const Status written = rows_->Finish();
    STATCOLLECT_RETURN_IF_ERROR(WhyItEnded(written));
    return partial_.Commit();
  }

 private:
  // The program's own words; `written` if it has none. Nothing can be written afterwards.
  Status WhyItEnded(const Status& written) {
    rows_.reset();  // closes the pipe
    const PythonProcess::End end = process_.Wait();
    if (end.code == 0) return written;
    const std::string why = Printable(end.errors, 500);
    if (end.code == kNoPyarrow) {
      return {Code::kUnimplemented,
              "write Parquet with '" + Printable(python_) + "': " + why +
                  "; expected a Python with the package pyarrow: install it there, name "
                  "another Python in STATCTL_PYTHON, or export csv"};
    }
    const bool full = why.find("No space left") != std::string::npos;
    return {full ? Code::kResourceExhausted : Code::kUnknown,
            "write '" + Printable(path_) + "': " +
                (why.empty() ? "'" + Printable(python_) + "' ended with " + std::to_string(end.code)
                             : why) +
                (full ? "; free space or choose another place" : "")};
  }

  const std::string path_;
  Partial partial_;
  const std::string python_;
  PythonProcess process_;           // killed before the part of a file is removed
  std::unique_ptr<Exporter> rows_;  // into its pipe
};

}  // namespace

Result<std::unique_ptr<Exporter>> MakeParquetExporter(const ExportTarget& target) {
  auto partial = Partial::File(target.path, target.overwrite);
  if (!partial.ok()) return partial.status();
  // Makes the file, so that a wrong place is an error here, in the words of the other formats.
  STATCOLLECT_RETURN_IF_ERROR(WriteNewFile(partial->path(), ""));
  std::vector<std::string> arguments = {partial->path()};
  if (target.sketches) arguments.emplace_back("sketch");
  if (target.samples) arguments.emplace_back("samples");
  std::string python = FindPython();
  auto process = PythonProcess::Start(python, kParquetWriter, arguments);
  if (!process.ok()) return process.status();
  return std::unique_ptr<Exporter>(std::make_unique<ParquetExporter>(
      target, *std::move(partial), std::move(python), *std::move(process)));
}

}  // namespace statcollect::client
