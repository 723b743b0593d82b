// One store over several ClickHouses, each with tables of its own: rank r lies in shard r % N, so
// that the same rank of two runs lies together. The first shard also has the catalogue: attempts,
// documents, what is kept.
//
// Other shards know only which attempts were removed, so that a read or write there finds out. They
// learn of a removal when the data is deleted (PurgeRetired), which goes on until all of them know.
#ifndef STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARDED_STORE_H_
#define STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARDED_STORE_H_

#include <memory>
#include <vector>

#include "server/store/clickhouse/clickhouse_store.h"
#include "server/store/store.h"

namespace statcollect {

// `shards`: two or more, in their order.
std::unique_ptr<Store> MakeShardedStore(std::vector<std::unique_ptr<ClickHouseShard>> shards);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_CLICKHOUSE_SHARDED_STORE_H_
