// Statistics of what an .npy file holds, as the agent computes them: the one place of the client
// that uses its engine.
#ifndef STATCOLLECT_CLIENT_FORMATS_NPY_STATS_H_
#define STATCOLLECT_CLIENT_FORMATS_NPY_STATS_H_

#include "client/formats/npy.h"
#include "client/formats/source.h"
#include "common/records.h"
#include "common/status.h"

namespace statcollect::client::formats {

// Statistics of the elements that follow the header, without sketch. `as`: the header's dtype, or
// kBf16 for float32 numbers that are bfloat16's, or kBool for bytes that are 0 or 1
// (kFailedPrecondition if one is not). kInvalidArgument: fewer or more bytes than the shape says.
// Memory: 4 MiB; of an array in Fortran's order, which cannot be read from front to back, all of
// it, at most 4 GiB, but never more than there is in the file.
Result<TensorStats> ReadNpyStats(ByteSource& file, const NpyHeader& header, DType as);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_NPY_STATS_H_
