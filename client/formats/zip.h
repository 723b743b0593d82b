// The directory of a zip file whose members are stored as they are, which is what torch.save
// writes.
#ifndef STATCOLLECT_CLIENT_FORMATS_ZIP_H_
#define STATCOLLECT_CLIENT_FORMATS_ZIP_H_

#include <cstdint>
#include <map>
#include <string>

#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

struct ZipMember {
  std::uint64_t header = 0;  // where its own header begins
  std::uint64_t bytes = 0;
  bool stored = true;  // neither compressed nor encrypted
};

// By name. kInvalidArgument, with the file: it has no such directory, as when its writer was ended,
// or one beyond 64 MiB or 2^20 members. Members are not read.
Result<std::map<std::string, ZipMember>> ReadZipDirectory(ByteSource& file);

// Leaves the file at a byte of the member. kInvalidArgument: it is compressed, or its bytes are not
// all in the file.
Status SeekInMember(ByteSource& file, const std::string& name, const ZipMember& member,
                    std::uint64_t offset);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_ZIP_H_
