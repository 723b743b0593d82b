// The interface of libstatctl_parquet.so, which statctl loads when Parquet is requested. Both come from the
// same build, so the interface is C++.
#ifndef STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_
#define STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_

#include "client/exports/exporter.h"

namespace statcollect::client {

inline constexpr char kParquetModule[] = "libstatctl_parquet.so";
inline constexpr char kParquetEntry[] = "statctl_make_parquet_exporter";

// Sets one of the two; the caller owns the exporter.
using MakeParquet = void(const ExportTarget& target, std::unique_ptr<Exporter>* exporter, Status* failure);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_
