// Which tool wrote a dump, from the names of its files.
#ifndef STATCOLLECT_CLIENT_FORMATS_RECOGNISE_H_
#define STATCOLLECT_CLIENT_FORMATS_RECOGNISE_H_

#include <string>

#include "client/formats/dump.h"
#include "common/status.h"

namespace statcollect::client::formats {

// kNotFound: no file has a known name. kInvalidArgument: files of several tools.
Result<DumpFormat> RecogniseDump(const std::string& path);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_RECOGNISE_H_
