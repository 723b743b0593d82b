// What libstatctl_parquet.so offers to statctl, which loads it when Parquet is asked for. Both come from one
// build: the interface is C++.
#ifndef STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_
#define STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_

#include "client/exports/exporter.h"

namespace statcollect::client {

inline constexpr char kParquetModule[] = "libstatctl_parquet.so";
inline constexpr char kParquetEntry[] = "statctl_make_parquet_exporter";

// Fills one of the two; the exporter is the caller's.
using MakeParquet = void(const ExportTarget& target, std::unique_ptr<Exporter>* exporter, Status* failure);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_PARQUET_MODULE_H_
