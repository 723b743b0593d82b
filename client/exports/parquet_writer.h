// The text of parquet_writer.py, which makes the file.
#ifndef STATCOLLECT_CLIENT_EXPORTS_PARQUET_WRITER_H_
#define STATCOLLECT_CLIENT_EXPORTS_PARQUET_WRITER_H_

namespace statcollect::client {

extern const char kParquetWriter[];

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_PARQUET_WRITER_H_
