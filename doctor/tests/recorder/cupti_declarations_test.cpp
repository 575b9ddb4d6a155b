#include "doctor/read/cupti_kinds.hpp"
#include "doctor/recorder/cupti.hpp"

#include <gtest/gtest.h>

// Compares the recorder's declarations with NVIDIA's, if there is a toolkit.
#if __has_include(<cupti.h>)
#include <cupti.h>

namespace penstock::recorder {
namespace {

#define EXPECT_SAME_PLACE(ours, our_member, theirs, their_member)        \
  EXPECT_EQ(offsetof(ours, our_member), offsetof(theirs, their_member)); \
  EXPECT_EQ(sizeof(ours::our_member), sizeof(theirs::their_member))

TEST(CuptiDeclarations, RecordsOfCopiesBeginAsNvidias) {
  EXPECT_SAME_PLACE(CuptiCopyRecord, copy_kind, CUpti_ActivityMemcpy5, copyKind);
  EXPECT_SAME_PLACE(CuptiCopyRecord, source_kind, CUpti_ActivityMemcpy5, srcKind);
  EXPECT_SAME_PLACE(CuptiCopyRecord, destination_kind, CUpti_ActivityMemcpy5, dstKind);
  EXPECT_SAME_PLACE(CuptiCopyRecord, bytes, CUpti_ActivityMemcpy5, bytes);
  EXPECT_SAME_PLACE(CuptiCopyRecord, begin, CUpti_ActivityMemcpy5, start);
  EXPECT_SAME_PLACE(CuptiCopyRecord, end, CUpti_ActivityMemcpy5, end);
  EXPECT_SAME_PLACE(CuptiCopyRecord, device, CUpti_ActivityMemcpy5, deviceId);
  EXPECT_SAME_PLACE(CuptiCopyRecord, stream, CUpti_ActivityMemcpy5, streamId);
  EXPECT_SAME_PLACE(CuptiCopyRecord, correlation, CUpti_ActivityMemcpy5, correlationId);
  EXPECT_SAME_PLACE(CuptiCopyRecord, bytes, CUpti_ActivityMemcpyPtoP4, bytes);
  EXPECT_SAME_PLACE(CuptiCopyRecord, end, CUpti_ActivityMemcpyPtoP4, end);
  EXPECT_SAME_PLACE(CuptiCopyRecord, device, CUpti_ActivityMemcpyPtoP4, deviceId);
  EXPECT_SAME_PLACE(CuptiCopyRecord, stream, CUpti_ActivityMemcpyPtoP4, streamId);
}

TEST(CuptiDeclarations, RecordsOfWorkBeginAsNvidias) {
  EXPECT_SAME_PLACE(CuptiSetRecord, begin, CUpti_ActivityMemset4, start);
  EXPECT_SAME_PLACE(CuptiSetRecord, end, CUpti_ActivityMemset4, end);
  EXPECT_SAME_PLACE(CuptiSetRecord, device, CUpti_ActivityMemset4, deviceId);
  EXPECT_SAME_PLACE(CuptiSetRecord, stream, CUpti_ActivityMemset4, streamId);
  EXPECT_SAME_PLACE(CuptiKernelRecord, begin, CUpti_ActivityKernel9, start);
  EXPECT_SAME_PLACE(CuptiKernelRecord, end, CUpti_ActivityKernel9, end);
  EXPECT_SAME_PLACE(CuptiKernelRecord, device, CUpti_ActivityKernel9, deviceId);
  EXPECT_SAME_PLACE(CuptiKernelRecord, stream, CUpti_ActivityKernel9, streamId);
  EXPECT_EQ(offsetof(CuptiKernelRecord, grid), offsetof(CUpti_ActivityKernel9, gridX));
  EXPECT_SAME_PLACE(CuptiKernelRecord, name, CUpti_ActivityKernel9, name);
}

TEST(CuptiDeclarations, RecordsOfCallsAreNvidias) {
  EXPECT_EQ(sizeof(CuptiCallRecord), sizeof(CUpti_ActivityAPI));
  EXPECT_SAME_PLACE(CuptiCallRecord, function, CUpti_ActivityAPI, cbid);
  EXPECT_SAME_PLACE(CuptiCallRecord, begin, CUpti_ActivityAPI, start);
  EXPECT_SAME_PLACE(CuptiCallRecord, end, CUpti_ActivityAPI, end);
  EXPECT_SAME_PLACE(CuptiCallRecord, thread, CUpti_ActivityAPI, threadId);
  EXPECT_SAME_PLACE(CuptiCallRecord, correlation, CUpti_ActivityAPI, correlationId);
  EXPECT_SAME_PLACE(CuptiCallDetails, site, CUpti_CallbackData, callbackSite);
  EXPECT_SAME_PLACE(CuptiCallDetails, correlation, CUpti_CallbackData, correlationId);
}

TEST(CuptiDeclarations, RecordsOfRangesAreNvidias) {
  EXPECT_EQ(sizeof(CuptiMarkerRecord), sizeof(CUpti_ActivityMarker2));
  EXPECT_SAME_PLACE(CuptiMarkerRecord, time, CUpti_ActivityMarker2, timestamp);
  EXPECT_SAME_PLACE(CuptiMarkerRecord, range, CUpti_ActivityMarker2, id);
  EXPECT_SAME_PLACE(CuptiMarkerRecord, name, CUpti_ActivityMarker2, name);
  EXPECT_SAME_PLACE(CuptiMarkerRecord, domain, CUpti_ActivityMarker2, domain);
  EXPECT_EQ(offsetof(CuptiMarkerRecord, process), offsetof(CUpti_ActivityMarker2, objectId));
  EXPECT_EQ(kActivityMarker, CUPTI_ACTIVITY_KIND_MARKER);
  EXPECT_EQ(kMarkerBegins, CUPTI_ACTIVITY_FLAG_MARKER_START);
  EXPECT_EQ(kMarkerEnds, CUPTI_ACTIVITY_FLAG_MARKER_END);
}

TEST(CuptiDeclarations, RecordsOfContextsAndStreamsAreNvidias) {
  EXPECT_SAME_PLACE(CuptiContextRecord, context, CUpti_ActivityContext3, contextId);
  EXPECT_SAME_PLACE(CuptiContextRecord, device, CUpti_ActivityContext3, deviceId);
  EXPECT_SAME_PLACE(CuptiContextRecord, default_stream, CUpti_ActivityContext3, nullStreamId);
  EXPECT_EQ(sizeof(CuptiStreamRecord), sizeof(CUpti_ActivityStream));
  EXPECT_SAME_PLACE(CuptiStreamRecord, context, CUpti_ActivityStream, contextId);
  EXPECT_SAME_PLACE(CuptiStreamRecord, stream, CUpti_ActivityStream, streamId);
  EXPECT_SAME_PLACE(CuptiStreamRecord, kind, CUpti_ActivityStream, flag);
  EXPECT_EQ(kActivityContext, CUPTI_ACTIVITY_KIND_CONTEXT);
  EXPECT_EQ(kActivityStream, CUPTI_ACTIVITY_KIND_STREAM);
  EXPECT_EQ(cupti_stream_kind(CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT), StreamKind::blocking);
  EXPECT_EQ(cupti_stream_kind(CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING), StreamKind::non_blocking);
  EXPECT_EQ(cupti_stream_kind(CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL), StreamKind::default_stream);
}

TEST(CuptiDeclarations, ParametersOfCopiesBeginAsNvidias) {
  EXPECT_SAME_PLACE(CuptiCopyParameters, source, cudaMemcpy_v3020_params, src);
  EXPECT_SAME_PLACE(CuptiCopyParameters, bytes, cudaMemcpy_v3020_params, count);
  EXPECT_SAME_PLACE(CuptiCopyParameters, direction, cudaMemcpy_v3020_params, kind);
  EXPECT_SAME_PLACE(CuptiCopyParameters, source, cudaMemcpyAsync_ptsz_v7000_params, src);
  EXPECT_SAME_PLACE(CuptiCopyParameters, bytes, cudaMemcpyAsync_v3020_params, count);
  EXPECT_SAME_PLACE(CuptiCopyParameters, direction, cudaMemcpyAsync_v3020_params, kind);
  EXPECT_SAME_PLACE(CuptiCopyParameters, source, cuMemcpyHtoD_v2_params, srcHost);
  EXPECT_SAME_PLACE(CuptiCopyParameters, bytes, cuMemcpyHtoD_v2_params, ByteCount);
  EXPECT_SAME_PLACE(CuptiCopyParameters, source, cuMemcpyHtoDAsync_v2_params, srcHost);
  EXPECT_SAME_PLACE(CuptiCopyParameters, bytes, cuMemcpyHtoDAsync_v2_params, ByteCount);
  EXPECT_SAME_PLACE(CuptiCallDetails, parameters, CUpti_CallbackData, functionParams);
}

TEST(CuptiDeclarations, NumbersAreNvidias) {
  EXPECT_EQ(kActivityCopy, CUPTI_ACTIVITY_KIND_MEMCPY);
  EXPECT_EQ(kActivitySet, CUPTI_ACTIVITY_KIND_MEMSET);
  EXPECT_EQ(kActivityKernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EXPECT_EQ(kActivityPeerCopy, CUPTI_ACTIVITY_KIND_MEMCPY2);
  EXPECT_EQ(kActivityDriver, CUPTI_ACTIVITY_KIND_DRIVER);
  EXPECT_EQ(kActivityRuntime, CUPTI_ACTIVITY_KIND_RUNTIME);
  EXPECT_EQ(kDriverDomain, CUPTI_CB_DOMAIN_DRIVER_API);
  EXPECT_EQ(kRuntimeDomain, CUPTI_CB_DOMAIN_RUNTIME_API);
  EXPECT_EQ(kCuptiMultipleSubscribers, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_EQ(CUPTI_API_ENTER, 0);
  EXPECT_EQ(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, 1);
  EXPECT_EQ(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, 1);
  EXPECT_EQ(CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, 2);
  EXPECT_EQ(CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, 1);
  EXPECT_EQ(CUPTI_ACTIVITY_MEMORY_KIND_PINNED, 2);
  EXPECT_EQ(CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 3);
}

}  // namespace
}  // namespace penstock::recorder
#endif
