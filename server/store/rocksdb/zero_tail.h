// What a power cut may leave at the end of RocksDB's journals.
#ifndef STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_
#define STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_

#include <functional>
#include <string>

#include <rocksdb/file_system.h>

namespace statcollect {

// A power cut may leave a journal (the newest log, the newest MANIFEST) longer than what reached the disk,
// with zeros in the place of the sectors that did not. RocksDB takes a record that ends in them for damage.
// Cuts off the sectors of zeros that these files end with, so that the record is one that is missing its end,
// which was never acknowledged. True: there was something to cut off. Only for a store that RocksDB refuses.
bool CutZeroTails(rocksdb::FileSystem& files, const std::string& directory,
                  const std::function<void(const std::string&)>& log);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_ROCKSDB_ZERO_TAIL_H_
