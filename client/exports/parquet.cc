// Loads the module that knows Parquet: Apache Arrow is large, and most calls of statctl do without it.
#include <dlfcn.h>

#include <string>

#include "client/exports/exporter.h"
#include "client/exports/parquet_module.h"
#include "common/names.h"

namespace statcollect::client {

Result<std::unique_ptr<Exporter>> MakeParquetExporter(const ExportTarget& target) {
  // Found beside statctl by its run path. Stays loaded: the exporter's code is in it.
  void* const module = dlopen(kParquetModule, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    const char* const reason = dlerror();
    return Status(Code::kUnimplemented,
                  "this build of statctl has no Parquet (" + Printable(reason == nullptr ? "" : reason, 300) +
                      "); install the pip package pyarrow into .venv and build again, or export csv");
  }
  auto* const make = reinterpret_cast<MakeParquet*>(dlsym(module, kParquetEntry));
  if (make == nullptr)
    return Status(Code::kInternal, std::string(kParquetModule) +
                                       " is from a different "
                                       "version");
  std::unique_ptr<Exporter> exporter;
  Status failure;
  make(target, &exporter, &failure);
  if (!failure.ok()) return failure;
  return exporter;
}

}  // namespace statcollect::client
