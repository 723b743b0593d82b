#include "client/exports/exporter.h"

#include <array>
#include <utility>

namespace statcollect::client {

namespace {

constexpr std::array<std::pair<std::string_view, ExportFormat>, 5> kFormats = {
    {{"csv", ExportFormat::kCsv},
     {"json", ExportFormat::kJson},
     {"ort", ExportFormat::kOrt},
     {"tensorboard", ExportFormat::kTensorBoard},
     {"parquet", ExportFormat::kParquet}}};

}  // namespace

std::optional<ExportFormat> ParseExportFormat(std::string_view name) {
  for (const auto& [known, format] : kFormats) {
    if (known == name) return format;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Exporter>> MakeExporter(ExportFormat format, const ExportTarget& target) {
  switch (format) {
    case ExportFormat::kCsv:
      return MakeCsvExporter(target);
    case ExportFormat::kJson:
      return MakeJsonExporter(target);
    case ExportFormat::kOrt:
      return MakeOrtExporter(target);
    case ExportFormat::kTensorBoard:
      return MakeTensorBoardExporter(target);
    case ExportFormat::kParquet:
      return MakeParquetExporter(target);
  }
  return Status(Code::kInternal, "export: unknown format");
}

}  // namespace statcollect::client
