// Files of a collector's data folder by which statctl finds the collector, and keeps its own one
// alive.
#ifndef STATCOLLECT_COMMON_DATA_FOLDER_H_
#define STATCOLLECT_COMMON_DATA_FOLDER_H_

namespace statcollect {

inline constexpr char kDataFolder[] =
    "statcollect-data";  // the default name, in the working directory

// Where the collector answers that has the folder open, one line, HOST:PORT or unix:/PATH. Written
// once it is ready; left behind by one that was killed.
inline constexpr char kAddressFile[] = "statcollectord.address";

// Every statctl that uses a collector of its own holds a shared lock on it (flock). Such a
// collector ends once it has the exclusive one; a statctl that waits for the shared one meanwhile
// starts the next.
inline constexpr char kUsersFile[] = "users.lock";

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_DATA_FOLDER_H_
