// The protos of this build with their comments, as protoc wrote them: a serialized
// FileDescriptorSet.
#ifndef STATCOLLECT_PROTO_DESCRIPTOR_SET_H_
#define STATCOLLECT_PROTO_DESCRIPTOR_SET_H_

#include <string_view>

namespace statcollect {

std::string_view DescriptorSetBytes();

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_DESCRIPTOR_SET_H_
