// Reads the headers of NumPy's .npy files, formats 1.0 to 3.0. Nothing in a file is executed:
// arrays of Python objects, which only pickle reads, are refused.
#ifndef STATCOLLECT_CLIENT_FORMATS_NPY_H_
#define STATCOLLECT_CLIENT_FORMATS_NPY_H_

#include "client/formats/array_stats.h"
#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

// kInvalidArgument, with the file: not such a file, an array of objects or of records, a header
// beyond 64 KiB, a shape beyond 64 dimensions or 2^62 elements. `file` is read up to the first
// element.
Result<StoredArray> ReadNpyHeader(ByteSource& file);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_NPY_H_
