/* Symbols of NVIDIA's driver that PyNvVideoCodec 2.2.4 loads: none does anything, and the ones
   that dstream's calls end in print what they were given. The layout is that of nvcuvid.h. */
#include <stdint.h>
#include <stdio.h>

#define NOTHING(name) int name(void) { return 0; }

struct caps {
    int32_t codec, chroma, depth_minus_8, reserved[3];
    uint8_t supported, engines;
    uint16_t formats;
    uint32_t max_width, max_height, max_macroblocks;
    uint16_t min_width, min_height;
};

struct packet {
    unsigned long flags, size;
    const uint8_t *payload;
    int64_t timestamp;
};

int NvEncodeAPIGetMaxSupportedVersion(uint32_t *version) { *version = 13 << 4; return 0; }
int cuGetErrorName(int error, const char **name) { *name = "STUB"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "stub"; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)16; return 0; }

int cuvidGetDecoderCaps(struct caps *caps) {
    caps->supported = caps->codec == 4 && caps->depth_minus_8 == 0; /* H.264 of 8 bits */
    caps->engines = 7;
    caps->max_width = caps->max_height = 4096;
    caps->max_macroblocks = 65536;
    caps->min_width = 48;
    caps->min_height = 16;
    return 0;
}

int cuvidParseVideoData(void *parser, const struct packet *packet) {
    printf("[%lu, %lu, %ld, %d]\n", packet->flags, packet->size, (long)packet->timestamp,
           packet->payload ? packet->payload[0] : -1);
    fflush(stdout);
    return 0;
}

NOTHING(cuCtxCreate_v2)
NOTHING(cuCtxDestroy_v2)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxPopCurrent_v2)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuDevicePrimaryCtxRelease_v2)
NOTHING(cuEventCreate)
NOTHING(cuEventDestroy_v2)
NOTHING(cuEventRecord)
NOTHING(cuEventSynchronize)
NOTHING(cuInit)
NOTHING(cuMemAllocAsync)
NOTHING(cuMemAllocPitch_v2)
NOTHING(cuMemAlloc_v2)
NOTHING(cuMemFreeAsync)
NOTHING(cuMemFree_v2)
NOTHING(cuMemcpy2DAsync_v2)
NOTHING(cuMemcpy2D_v2)
NOTHING(cuMemcpyDtoHAsync_v2)
NOTHING(cuMemcpyDtoH_v2)
NOTHING(cuMemcpyHtoD_v2)
NOTHING(cuPointerGetAttribute)
NOTHING(cuStreamCreate)
NOTHING(cuStreamDestroy_v2)
NOTHING(cuStreamGetCtx)
NOTHING(cuStreamSynchronize)
NOTHING(cuStreamWaitEvent)
NOTHING(cuvidCreateDecoder)
NOTHING(cuvidCreateVideoParser)
NOTHING(cuvidCreateVideoSource)
NOTHING(cuvidCreateVideoSourceW)
NOTHING(cuvidCtxLock)
NOTHING(cuvidCtxLockCreate)
NOTHING(cuvidCtxLockDestroy)
NOTHING(cuvidCtxUnlock)
NOTHING(cuvidDecodePicture)
NOTHING(cuvidDestroyDecoder)
NOTHING(cuvidDestroyVideoParser)
NOTHING(cuvidDestroyVideoSource)
NOTHING(cuvidGetDecodeStatus)
NOTHING(cuvidGetSourceAudioFormat)
NOTHING(cuvidGetSourceVideoFormat)
NOTHING(cuvidGetVideoSourceState)
NOTHING(cuvidMapVideoFrame)
NOTHING(cuvidMapVideoFrame64)
NOTHING(cuvidReconfigureDecoder)
NOTHING(cuvidSetVideoSourceState)
NOTHING(cuvidUnmapVideoFrame)
NOTHING(cuvidUnmapVideoFrame64)
